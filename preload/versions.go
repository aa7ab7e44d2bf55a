package main

// #include "shim.h"
import "C"

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/sets/checksum"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
)

// Versions of a set: each set that takes over a name is the next version of it. A process that has a version attached
// goes on to the newest, or back to the one before, at the same addresses (vmm/remap.go). docs/design/versions.md lists
// the holders of each version at each moment.

// version is a complete set, of which this process counts as a user.
type version struct {
	control.KeptSet
	// file is guarded by the lock of the table, as are Chunks and Sealed.
	file checksum.File
}

// openVersion opens the newest complete set of a name, on its device.
func (p *Process) openVersion(name string) (v version, err error) {
	reply, descriptor, err := p.askKeeper(control.SetRequest{Op: control.Open, Name: name, Confirm: true}, -1)
	if err == nil && reply.Sets[0].Place != "" {
		_ = unix.Close(descriptor)
		p.letGo(reply.Sets[0])
		text := (*C.char)(unsafe.Pointer(goruntime.Terminated(name)))
		if err = helped(func() C.int { return C.set_promote(text) }); err == nil {
			return p.openVersion(name)
		}
	}
	if err != nil {
		return v, err
	}
	defer func() { _ = unix.Close(descriptor) }()
	v.KeptSet = reply.Sets[0]
	if v.file, err = checksum.Read(descriptor); err != nil {
		p.letGo(v.KeptSet)
		return v, fmt.Errorf("the set's manifest cannot be read: %w", err)
	}
	p.sets.parts.use(v.ID)
	p.sets.parts.keepOpen(v.ID, 0, descriptor)
	return v, nil
}

// closeVersion ends what openVersion began, and the use of the chunks if they are mapped here or held for a return.
func (p *Process) closeVersion(v version, chunks bool) {
	if chunks {
		for _, chunk := range v.Chunks {
			p.sets.parts.unuse(chunk.ID)
		}
	}
	p.sets.parts.unuse(v.ID)
	p.letGo(v.KeptSet)
}

// moveSetOperation goes on to the newest version, or back to the version before. It returns the number of the version
// that is mapped then, and moved.
type moveSetOperation struct {
	handle uint64
	back   bool
}

// moved is beside the number of a version if another one was mapped before.
const moved = 1 << 63

func (o *moveSetOperation) run(p *Process, e *vmm.Engine) (result uint64, err error) {
	if err := p.mayUseSet(""); err != nil {
		return 0, err
	}
	err = p.useSet(o.handle, func(s *set) error {
		before := s.ID
		err := s.move(e, o.back, nil)
		if result = s.Version; s.ID != before {
			result |= moved
		}
		return err
	})
	return result, err
}

// settleSetOperation lets the version before go.
type settleSetOperation struct{ handle uint64 }

func (o *settleSetOperation) run(p *Process, _ *vmm.Engine) (uint64, error) {
	return 0, p.useSet(o.handle, func(s *set) error { s.settle(); return nil })
}

// followSetOperation lets others move a set between two steps.
type followSetOperation struct {
	handle uint64
	keeps  bool
}

func (o *followSetOperation) run(p *Process, _ *vmm.Engine) (uint64, error) {
	return 0, p.useSet(o.handle, func(s *set) error {
		if err := s.moves(); err != nil {
			return err
		}
		p.sets.Lock()
		defer p.sets.Unlock()
		s.follows, s.keeps = true, o.keeps
		return nil
	})
}

// advance moves the sets of a name that others may move, between two steps of the program, and returns what it then has.
func (t *task) advance() (moved []control.KeptSet, err error) {
	p, name := t.process, t.Request.Name
	if err = p.mayUseSet(name); err != nil {
		return nil, err
	}
	var following []uint64
	p.sets.Lock()
	for handle, s := range p.sets.open {
		if s.follows && s.Name == name {
			following = append(following, handle)
		}
	}
	p.sets.Unlock()
	e := p.engine.Load()
	if len(following) == 0 || e == nil {
		return nil, cuda.Refuse(cuda.NotSupported, "the program does not say where its steps end, so it moves this set "+
			"itself (tms.Following.advance), or its engine does by a call of its own")
	}
	timeout := control.Seconds(t.Request.TimeoutSeconds())
	deadline := time.Now().Add(timeout)
	C.steps_hold(true)
	defer C.steps_hold(false)
	if !poll(deadline, func() bool { return C.steps_in_progress() == 0 }) {
		return nil, cuda.Refuse(cuda.Timeout, "a step of the program has not ended within %v; nothing has changed", timeout)
	}
	idle := func() error {
		busy, err := e.AwaitIdle(deadline)
		if busy >= 0 {
			return cuda.Refuse(cuda.Timeout, "device %d has not finished within %v", busy, timeout)
		}
		return err
	}
	var done []uint64 // those that have another version now
	for _, handle := range following {
		err = p.useSet(handle, func(s *set) error {
			before := s.ID
			err := s.move(e, t.Request.Back, idle)
			if s.ID != before {
				done = append(done, handle)
			}
			return err
		})
		if err != nil {
			break
		}
	}
	deadline = time.Now().Add(timeout) // for those that go back
	for _, handle := range following {
		used := p.useSet(handle, func(s *set) (failed error) {
			switch {
			case err != nil && slices.Contains(done, handle):
				if failed = s.back(e, idle); !t.Request.Back {
					s.settle()
				}
			case err == nil && (t.Request.Back || !s.keeps):
				s.settle()
			}
			moved = append(moved, s.KeptSet)
			return failed
		})
		if err != nil && used != nil {
			err = fmt.Errorf("%w; and one of its sets of that name cannot go back: %w", err, used)
		}
	}
	return moved, err
}

// move is advance or back. idle waits for the devices; nil: as long as that takes.
func (s *set) move(e *vmm.Engine, back bool, idle func() error) error {
	if back {
		return s.back(e, idle)
	}
	return s.advance(e, idle)
}

// advance maps the newest version in the place of the one that is attached, which back maps again. Errors: as attach,
// and of vmm's Remap; nothing changes, except that what the driver would not map again is paused.
func (s *set) advance(e *vmm.Engine, idle func() error) error {
	if err := s.moves(); err != nil {
		return err
	}
	next, err := s.process.openVersion(s.Name)
	if err != nil {
		return err
	}
	switch {
	case next.ID == s.ID:
		s.process.closeVersion(next, false)
		return nil
	case s.before != nil && next.ID == s.before.ID: // after a return that was not settled
		s.process.closeVersion(next, false)
		return s.back(e, idle)
	}
	s.comes(&next)
	if err = s.fits(next); err == nil && bool(C.region_config.verify) {
		err = s.process.awake(func() error {
			_, err := next.file.Verify(next.Chunks, s.hashing(e))
			return err
		})
	}
	if err == nil {
		err = s.remap(e, next, idle)
	}
	if err != nil {
		s.comes(nil)
		s.process.closeVersion(next, false)
		return err
	}
	s.settle()
	last := s.version
	s.become(next, &last)
	return nil
}

// back maps the version before again, and keeps the one that was attached in its place. Errors: as advance.
func (s *set) back(e *vmm.Engine, idle func() error) error {
	if err := s.moves(); err != nil {
		return err
	}
	if s.before == nil {
		return s.noneBefore()
	}
	last := s.version
	if err := s.remap(e, *s.before, idle); err != nil {
		return err
	}
	s.become(*s.before, &last)
	return nil
}

// noneBefore is the error of a return to nothing.
func (s *set) noneBefore() error {
	return cuda.Refuse(cuda.InvalidValue, "this process has kept no version before version %d", s.Version)
}

// settle lets the version before go, if there is one.
func (s *set) settle() {
	if before := s.before; before != nil {
		s.process.sets.Lock()
		s.before = nil
		s.process.sets.Unlock()
		s.process.closeVersion(*before, true)
	}
}

// moves returns why a set cannot go on to another version.
func (s *set) moves() error {
	switch {
	case s.Sealed == 0:
		return cuda.Refuse(cuda.InvalidValue, "this version is still being written; seal it first")
	case len(s.addresses) < len(s.Chunks):
		return cuda.Refuse(cuda.InvalidValue, "the set is not attached in this process")
	}
	return nil
}

// become notes which version is mapped here, and which is held for a return.
func (s *set) become(now version, before *version) {
	s.process.sets.Lock()
	defer s.process.sets.Unlock()
	s.version, s.before, s.coming = now, before, nil
}

// comes notes that a version is about to be mapped, so that the next keeper takes it over, too; nil: it is not.
func (s *set) comes(next *version) {
	s.process.sets.Lock()
	defer s.process.sets.Unlock()
	s.coming = next
}

// remap maps the chunks of a version in the place of the set's. Those of before and after are in use until then. While
// it waits for the devices, a pause of everything can begin; the next keeper can have the version from this process.
func (s *set) remap(e *vmm.Engine, next version, idle func() error) (err error) {
	exchanges := make([]vmm.Exchange, len(s.addresses))
	for i, address := range s.addresses {
		exchanges[i] = vmm.Exchange{Address: address, ID: next.Chunks[i].ID}
		s.process.sets.parts.use(next.Chunks[i].ID)
	}
	if err = s.process.keepChunks(next); err == nil {
		err = e.Shared().Remap(exchanges, vmm.Remapping{Capturing: state().Capturing, Idle: idle, Mapping: s.process.awake})
	}
	if errors.Is(err, vmm.ErrShareGone) {
		err = cuda.Refuse(cuda.SymbolNotFound, "version %d is lost: %w", next.Version, err)
	}
	if back := s.before != nil && s.before.ID == next.ID; err != nil || back { // back has used them since it was mapped
		for _, chunk := range next.Chunks {
			s.process.sets.parts.unuse(chunk.ID)
		}
	}
	return err
}

// keepChunks gets the descriptors of a version's chunks.
func (p *Process) keepChunks(v version) error {
	for _, chunk := range v.Chunks {
		if p.sets.parts.isOpen(chunk.ID) {
			continue
		}
		export, err := p.Fetch(vmm.Share{PID: vmm.Keeper, ID: chunk.ID}, 0)
		if export.Descriptor >= 0 {
			_ = unix.Close(export.Descriptor)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fits refuses a version with tensors at other places than the set has them.
func (s *set) fits(next version) error {
	refuse := func(format string, arguments ...any) error {
		return cuda.Refuse(cuda.NotSupported, "version %d of %q cannot take the place of version %d, which this process "+
			"has: %s", next.Version, s.Name, s.Version, fmt.Sprintf(format, arguments...))
	}
	if next.Version == 0 {
		return cuda.Refuse(cuda.NotSupported, "the keeper is of an older tms, which does not number versions; restart it")
	}
	if next.Device != s.Device {
		return refuse("it lies on device %s, and not on %s", next.Device, s.Device)
	}
	if words := otherLayout(s.file.Manifest, next.file.Manifest); words != "" {
		return refuse("%s", words)
	}
	if len(next.Chunks) != len(s.Chunks) {
		return refuse("it has %d chunks, and not %d", len(next.Chunks), len(s.Chunks))
	}
	for i, chunk := range s.Chunks {
		if next.Chunks[i].Bytes != chunk.Bytes {
			return refuse("its chunk %d has %d bytes, and not %d", i, next.Chunks[i].Bytes, chunk.Bytes)
		}
	}
	return nil
}

// otherLayout compares the tensors of two manifests; "" if they are the same. If the Python package has made neither,
// the sizes of chunks are all that is known.
func otherLayout(has, comes []byte) string {
	if bytes.Equal(has, comes) { // as of two versions of one trainer; to parse both would take milliseconds
		return ""
	}
	var both [2]struct {
		Tensors map[string]map[string]json.RawMessage
	}
	_, _ = json.Unmarshal(has, &both[0]), json.Unmarshal(comes, &both[1]) // C programs write what they like
	here, there := both[0].Tensors, both[1].Tensors
	if (here == nil) != (there == nil) {
		return "only one of the two says where its tensors are, as tms.kept writes it"
	}
	names := map[string]bool{}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(here)), slices.Collect(maps.Keys(there))) {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch one, other := here[name], there[name]; {
		case other == nil:
			return fmt.Sprintf("it has no tensor %q", name)
		case one == nil:
			return fmt.Sprintf("it has one tensor more, %q", name)
		case !maps.EqualFunc(one, other, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }):
			return fmt.Sprintf("its tensor %q is %s, and not %s", name, placeOf(other), placeOf(one))
		}
	}
	return ""
}

// placeOf writes what a manifest says of a tensor.
func placeOf(tensor map[string]json.RawMessage) string {
	return fmt.Sprintf("%s of %s with strides %s at %s of chunk %s", bytes.Trim(tensor["dtype"], `"`), tensor["shape"],
		tensor["strides"], tensor["offset"], tensor["chunk"])
}
