package main

// #include "shim.h"
import "C"

import (
	"cmp"
	"encoding/json"
	"errors"
	"sync"
	"time"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
	"tms/internal/control/server"
	"tms/internal/sets/checksum"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/digest"
)

// Sets of memory that no process owns (tms_kept_*): the keeper (internal/sets) holds them, vmm/set.go makes and maps
// their memory.

func _() { _ = [1]struct{}{}[vmm.Keeper-control.Keeper] }

// set is a set that this process makes, or has open.
type set struct {
	version
	process *Process
	mu      sync.Mutex // held during an operation
	ordinal int        // its device's, or -1 if this process does not see the device
	tag     string
	// These are guarded by the lock of the table, too.
	addresses []uintptr // where the chunks are mapped; empty while they are not
	before    *version  // to which back returns, or nil
	coming    *version  // that an advance is about to map, or nil
	follows   bool      // others may move it between two steps
	keeps     bool      // and such an advance keeps the version before
}

// sets has what this process makes or has open.
type sets struct {
	sync.Mutex
	open  map[uint64]*set // by what the pointers of C programs hold
	last  uint64
	parts parts

	// attaching is held, shared, while memory of sets is mapped, or reserved memory for a pointer to a backup. A pause of
	// everything holds it until no more can be: the driver's checkpoint would lose a process that has such memory mapped.
	attaching sync.RWMutex
}

func everythingIsPaused() error {
	return cuda.Refuse(cuda.NotSupported, "everything of this process is paused; tms resume brings it back")
}

// createSetOperation begins a set. The keeper learns of it with its first chunk. (cuDeviceGetUuid)
type createSetOperation struct {
	name, tag string
	device    int
}

func (o *createSetOperation) run(p *Process, _ *vmm.Engine) (uint64, error) {
	if err := p.mayUseSet(o.name); err != nil {
		return 0, err
	}
	uuid, err := p.driver.DeviceUUID(cuda.Device(o.device))
	if err != nil {
		return 0, err
	}
	made := control.KeptSet{ID: descriptors.Number(), Name: o.name, Device: uuid}
	return (&set{process: p, version: version{KeptSet: made}, ordinal: o.device, tag: o.tag}).enter(), nil
}

// openSetOperation opens a complete set.
type openSetOperation struct{ name, tag string }

func (o *openSetOperation) run(p *Process, _ *vmm.Engine) (uint64, error) {
	if err := p.mayUseSet(o.name); err != nil {
		return 0, err
	}
	return p.openSet(o.name, o.tag)
}

// addToSetOperation makes a chunk, and returns its address.
type addToSetOperation struct{ handle, size uint64 }

func (o *addToSetOperation) run(p *Process, e *vmm.Engine) (address uint64, err error) {
	err = p.changeSet(o.handle, func(s *set) error {
		address, err = s.add(e, o.size)
		return err
	})
	return address, err
}

// sealSetOperation makes a set complete.
type sealSetOperation struct {
	handle   uint64
	manifest []byte
}

func (o *sealSetOperation) run(p *Process, e *vmm.Engine) (uint64, error) {
	return 0, p.changeSet(o.handle, func(s *set) error { return s.seal(e, o.manifest) })
}

// attachSetOperation maps a set.
type attachSetOperation struct{ handle uint64 }

func (o *attachSetOperation) run(p *Process, e *vmm.Engine) (uint64, error) {
	if err := p.mayUseSet(""); err != nil {
		return 0, err
	}
	return 0, p.useSet(o.handle, func(s *set) error { return s.attach(e) })
}

// closeSetOperation unmaps a set and forgets it, even while everything is paused.
type closeSetOperation struct{ handle uint64 }

func (o *closeSetOperation) run(p *Process, e *vmm.Engine) (uint64, error) {
	return 0, p.useSet(o.handle, func(s *set) error { return s.close(e, o.handle) })
}

// mayUseSet refuses while everything is paused, because calls of the driver wait, and for a name that is not UTF-8.
func (p *Process) mayUseSet(name string) error {
	if C.checkpoint_asked() {
		return everythingIsPaused()
	}
	if !utf8.ValidString(name) {
		return cuda.Refuse(cuda.InvalidValue, "a set's name is UTF-8, and %q is not", name)
	}
	return nil
}

// useSet calls use while no other operation uses the set.
func (p *Process) useSet(handle uint64, use func(*set) error) error {
	s := p.setBy(handle)
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	if s == nil || s != p.setBy(handle) { // another thread closed it while this one waited for the lock
		return noSuchSet()
	}
	return use(s)
}

// changeSet is useSet for a set that is not complete.
func (p *Process) changeSet(handle uint64, change func(*set) error) error {
	if err := p.mayUseSet(""); err != nil {
		return err
	}
	return p.useSet(handle, func(s *set) error {
		if s.Sealed != 0 {
			return cuda.Refuse(cuda.InvalidValue, "the set is complete already")
		}
		return change(s)
	})
}

func noSuchSet() error {
	return cuda.Refuse(cuda.InvalidValue, "there is no such set: it was closed, or never opened")
}

func (p *Process) setBy(handle uint64) *set {
	p.sets.Lock()
	defer p.sets.Unlock()
	return p.sets.open[handle]
}

// enter puts a set into the table, and returns its handle.
func (s *set) enter() uint64 {
	s.process.sets.Lock()
	defer s.process.sets.Unlock()
	s.process.sets.last++
	s.process.sets.open[s.process.sets.last] = s
	return s.process.sets.last
}

// awake does what maps memory of a set, unless everything is paused.
func (p *Process) awake(do func() error) error {
	p.sets.attaching.RLock()
	defer p.sets.attaching.RUnlock()
	if C.checkpoint_asked() {
		return everythingIsPaused()
	}
	return do()
}

// keepAsleep waits until no memory of sets is being mapped, and keeps it so until done is called.
func (p *Process) keepAsleep(within time.Duration) (done func(), err error) {
	if !poll(time.Now().Add(within), p.sets.attaching.TryLock) {
		return nil, cuda.Refuse(cuda.Timeout, "a thread of the program has not mapped memory of a set within %v; nothing "+
			"has changed", within)
	}
	return p.sets.attaching.Unlock, nil
}

// mapChunk maps one chunk more, of a set that is complete or being made.
func (s *set) mapChunk(e *vmm.Engine, chunk control.KeptChunk) error {
	if err := goruntime.Ready(s.ordinal); err != nil {
		return err
	}
	s.process.sets.parts.use(chunk.ID)
	address, err := e.Shared().Attach(s.ordinal, chunk.ID, s.tag, s.Sealed != 0)
	if err != nil {
		s.process.sets.parts.unuse(chunk.ID)
		return err
	}
	s.process.sets.Lock()
	defer s.process.sets.Unlock()
	if s.addresses = append(s.addresses, address); s.Sealed == 0 {
		s.Chunks = append(s.Chunks, chunk)
	}
	return nil
}

// unmap unmaps all chunks, the last one first.
func (s *set) unmap(e *vmm.Engine) error {
	for last := len(s.addresses) - 1; last >= 0; last-- {
		if err := e.Shared().Close(s.addresses[last], state().Capturing); err != nil {
			return err
		}
		s.process.sets.parts.unuse(s.Chunks[last].ID)
		s.process.sets.Lock()
		s.addresses = s.addresses[:last]
		s.process.sets.Unlock()
	}
	return nil
}

// add makes a chunk and returns its address.
func (s *set) add(e *vmm.Engine, size uint64) (uint64, error) {
	if size == 0 {
		return 0, cuda.Refuse(cuda.InvalidValue, "a chunk has at least one byte")
	}
	descriptor, bytes, err := e.Shared().MakeForSet(s.ordinal, size)
	if err != nil {
		return 0, err
	}
	chunk := control.KeptChunk{ID: descriptors.Number(), Bytes: bytes}
	_, _, err = s.process.askKeeper(control.SetRequest{Op: control.Put, Set: s.ID, Name: s.Name, Device: s.Device,
		Chunk: chunk.ID, Bytes: bytes, Before: len(s.Chunks)}, descriptor)
	_ = unix.Close(descriptor)
	if err == nil {
		err = s.process.awake(func() error { return s.mapChunk(e, chunk) })
	}
	if err != nil { // the keeper may have a chunk more from now on, and refuses the next
		return 0, err
	}
	return uint64(s.addresses[len(s.addresses)-1]), nil
}

// seal makes the set read-only here, and complete for all.
func (s *set) seal(e *vmm.Engine, manifest []byte) error {
	for _, address := range s.addresses {
		if err := e.Shared().Protect(address); err != nil {
			return err
		}
	}
	var sealed checksum.File
	err := s.process.awake(func() (err error) {
		sealed, err = checksum.Seal(manifest, s.Chunks, s.hashing(e))
		return err
	})
	if errors.Is(err, vmm.ErrShareGone) {
		err = cuda.Refuse(cuda.SymbolNotFound, "%w; publish it again", err)
	}
	if err != nil {
		return err
	}
	file, err := fileOf(sealed.All)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(file) }()
	var python struct{ Tensors map[string]json.RawMessage }
	_ = json.Unmarshal(manifest, &python) // a C program writes what it likes
	reply, _, err := s.process.askKeeper(control.SetRequest{Op: control.Seal, Set: s.ID, Before: len(s.Chunks),
		Tensors: len(python.Tensors), Confirm: true}, file)
	if err == nil {
		s.process.sets.parts.use(s.ID)
		s.process.sets.parts.keepOpen(s.ID, 0, file)
		s.process.sets.Lock()
		defer s.process.sets.Unlock()
		told := reply.Sets[0]
		s.file, s.Sealed, s.Bytes, s.Tensors = sealed, told.Sealed, told.Bytes, told.Tensors
		s.Version = told.Version
	}
	return err
}

// fileOf returns a file in memory. (memfd_create)
func fileOf(contents []byte) (descriptor int, err error) {
	if descriptor, err = unix.MemfdCreate("tms-manifest", unix.MFD_CLOEXEC); err == nil {
		var written int
		if written, err = unix.Write(descriptor, contents); written == len(contents) {
			return descriptor, nil
		}
		_ = unix.Close(descriptor)
	}
	return -1, cuda.Refuse(cuda.OperatingSystem, "no host memory for the manifest: %v", cmp.Or(err, error(unix.ENOSPC)))
}

func (p *Process) openSet(name, tag string) (uint64, error) {
	v, err := p.openVersion(name)
	if err != nil {
		return 0, err
	}
	return (&set{process: p, version: v, tag: tag, ordinal: p.driver.DeviceBy(v.Device)}).enter(), nil
}

// letGo tells the keeper that this process no longer uses a set. A keeper that has ended counts nothing.
func (p *Process) letGo(s control.KeptSet) {
	_ = server.Tell(p.Directories, control.Keeper, control.SetRequest{Op: control.Close, Set: s.ID})
}

// hashing returns a function that hashes chunks. It maps the chunks itself, because a pause may take the program's
// mappings at any time.
func (s *set) hashing(e *vmm.Engine) checksum.Hash {
	return func(chunk control.KeptChunk, keys *digest.Keys) ([]digest.Sum, error) {
		_, descriptor, err := s.process.askKeeper(control.LendRequest{Op: control.Lend, Memory: chunk.ID}, -1)
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Close(descriptor) }()
		return e.Shared().Sums(s.ordinal, descriptor, chunk.Bytes, keys)
	}
}

// attach maps all of a set, or nothing. With TMS_VERIFY it compares the contents first.
func (s *set) attach(e *vmm.Engine) error {
	switch {
	case s.Sealed == 0:
		return cuda.Refuse(cuda.InvalidValue, "the set is not complete yet; what it has is mapped here already")
	case s.ordinal < 0:
		return cuda.Refuse(cuda.NotSupported, "the set lies on device %s, which this process does not see "+
			"(CUDA_VISIBLE_DEVICES?)", s.Device)
	}
	if bool(C.region_config.verify) && len(s.addresses) == 0 {
		err := s.process.awake(func() error {
			_, err := s.file.Verify(s.Chunks, s.hashing(e))
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, chunk := range s.Chunks[len(s.addresses):] {
		if err := s.process.awake(func() error { return s.mapChunk(e, chunk) }); err != nil {
			return errors.Join(err, s.unmap(e))
		}
	}
	return nil
}

// close unmaps a set and forgets it. An incomplete one is gone then.
func (s *set) close(e *vmm.Engine, handle uint64) error {
	if err := s.unmap(e); err != nil {
		return err
	}
	s.settle()
	s.process.sets.Lock()
	delete(s.process.sets.open, handle)
	s.process.sets.Unlock()
	if s.Sealed != 0 {
		s.process.sets.parts.unuse(s.ID)
	}
	s.process.letGo(s.KeptSet)
	return nil
}

// setsOpen lists what this process could tell a new keeper.
func (p *Process) setsOpen() (sets []control.KeptSet) {
	p.sets.Lock()
	defer p.sets.Unlock()
	for _, s := range p.sets.open {
		if s.Sealed != 0 {
			told := s.KeptSet
			told.Follows = s.follows
			sets = append(sets, told)
		}
		for _, other := range []*version{s.before, s.coming} {
			if other != nil {
				sets = append(sets, other.KeptSet)
			}
		}
	}
	return sets
}

// setAttached returns the name of a set that is mapped here, or "".
func (p *Process) setAttached() string {
	p.sets.Lock()
	defer p.sets.Unlock()
	for _, s := range p.sets.open {
		if len(s.addresses) > 0 {
			return s.Name
		}
	}
	return ""
}

// askKeeper is ask for the keeper.
func (p *Process) askKeeper(r control.Request, descriptor int) (control.Reply, int, error) {
	return p.ask(vmm.Share{PID: vmm.Keeper}, r.Sent(1), descriptor)
}

// withSet looks at a set, for C.
func (p *Process) withSet(handle C.uintptr_t, look func(*set) error) C.int {
	return report(goruntime.Run(func() error {
		p.sets.Lock()
		defer p.sets.Unlock()
		if s := p.sets.open[uint64(handle)]; s != nil {
			return look(s)
		}
		return noSuchSet()
	}))
}

// tmsSetManifest copies at most capacity bytes of a manifest, and returns its size.
//
//export tmsSetManifest
func tmsSetManifest(handle C.uintptr_t, buffer unsafe.Pointer, capacity C.size_t, size *C.size_t) C.int {
	return self.withSet(handle, func(s *set) error {
		*size = C.size_t(len(s.file.Manifest))
		if buffer != nil {
			copy(unsafe.Slice((*byte)(buffer), capacity), s.file.Manifest)
		}
		return nil
	})
}

//export tmsSetVersion
func tmsSetVersion(handle C.uintptr_t, number *C.uint64_t) C.int {
	return self.withSet(handle, func(s *set) error {
		*number = C.uint64_t(s.Version)
		return nil
	})
}

//export tmsSetBefore
func tmsSetBefore(handle C.uintptr_t, number *C.uint64_t) C.int {
	return self.withSet(handle, func(s *set) error {
		if s.before == nil {
			return s.noneBefore()
		}
		*number = C.uint64_t(s.before.Version)
		return nil
	})
}

//export tmsSetChunk
func tmsSetChunk(handle C.uintptr_t, index C.size_t, address *C.uintptr_t, bytes *C.size_t, device *C.int) C.int {
	return self.withSet(handle, func(s *set) error {
		if uint64(index) >= uint64(len(s.addresses)) {
			return cuda.Refuse(cuda.InvalidValue, "the set has %d chunks mapped here, and no number %d",
				len(s.addresses), index)
		}
		*address, *bytes = C.uintptr_t(s.addresses[index]), C.size_t(s.Chunks[index].Bytes)
		*device = C.int(s.ordinal)
		return nil
	})
}
