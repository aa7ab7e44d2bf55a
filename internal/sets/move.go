package sets

import (
	"cmp"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/machine/hostmemory"
	"tms/internal/machine/process"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// Device is the place of a set that programs can map, beside control.ToHost and control.ToDisk.
const Device = ""

// Move copies a set to a place, unless it is there, and returns it as it then is. Files have no name, and lie in a
// directory. Errors: why it stays where it was; *cuda.Error.
func Move(name, to, directory string) (control.KeptSet, error) {
	for {
		moved, err := opened(name, func(set control.KeptSet, manifest int) (control.KeptSet, error) {
			return move(set, manifest, to, directory)
		})
		if !errors.Is(err, errChanged) {
			return moved, err
		}
	}
}

// opened opens a set for the time of a call.
func opened(name string, use func(control.KeptSet, int) (control.KeptSet, error)) (control.KeptSet, error) {
	reply, manifest, err := Ask(control.SetRequest{Op: control.Open, Name: name, Confirm: true}, -1)
	if err != nil {
		return control.KeptSet{}, err
	}
	set, err := use(reply.Sets[0], manifest)
	_ = unix.Close(manifest) // which ends a lock
	_, _, failed := Ask(control.SetRequest{Op: control.Close, Set: reply.Sets[0].ID}, -1)
	return set, cmp.Or(err, failed)
}

var errChanged = errors.New("another process has just moved, replaced or opened the set")

// move is Move of a set that is open. One process at a time moves it, and locks its manifest for that time (fcntl: all
// have one open file).
func move(set control.KeptSet, manifest int, to, directory string) (control.KeptSet, error) {
	err := lock(set.Name, manifest)
	reply, _, failed := Ask(control.SetRequest{Op: control.List}, -1)
	if err = cmp.Or(err, failed); err != nil {
		return set, err
	}
	if !slices.ContainsFunc(reply.Sets, func(s control.KeptSet) bool { return s.ID == set.ID && !s.Replaced }) {
		return set, errChanged
	}
	if set.Place == to {
		return set, nil
	}
	if err = inUse(set, os.Getpid()); err != nil {
		return set, err
	}
	var m mover
	if to == control.ToDisk {
		if m.directory, err = store.NewDirectory(directory, "TMS_DISK_BACKUP_DIR"); err != nil {
			return set, err
		}
	}
	if isMapped(set) || to == Device {
		if err = m.open(set.Device); err != nil {
			return set, err
		}
		defer m.close()
		if to == control.ToHost && m.driver.SharesHostMemory(m.device) {
			return set, cuda.Refuse(cuda.NotSupported, "its device has no memory of its own, so host memory would free "+
				"nothing: give --to disk")
		}
	}
	made := make([]end, len(set.Chunks))
	defer func() {
		for _, e := range made {
			e.close()
		}
	}()
	taken := to == control.ToHost && m.take(set, made)
	if inMemory := to == control.ToDisk && m.directory.InMemory(); inMemory || to == control.ToHost && !taken {
		promise, free := ledger.Promise(set.Bytes)
		if promise == nil {
			return set, cuda.Refuse(cuda.OperatingSystem, "it needs %s of host memory%s, and %s are available%s",
				readable.Bytes(set.Bytes), map[bool]string{true: ", which " + directory + " is"}[inMemory],
				readable.Bytes(free), map[bool]string{false: "; --to disk needs none"}[inMemory])
		}
		defer promise.End()
		m.promise = promise
	}
	m.direct = isMapped(set) && (taken || to == Device)
	if err = m.copy(set, made, to); err != nil {
		return set, err
	}
	return put(set, manifest, made, to)
}

// lock locks a set's manifest, unless its holder is stopped for too long.
func lock(name string, manifest int) error {
	var holders process.Watch
	for {
		wanted := unix.Flock_t{Type: unix.F_WRLCK}
		err := unix.FcntlFlock(uintptr(manifest), unix.F_SETLK, &wanted)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return err
		}
		found := unix.Flock_t{Type: unix.F_WRLCK}
		if err = unix.FcntlFlock(uintptr(manifest), unix.F_GETLK, &found); err != nil {
			return err
		}
		if holder := int(found.Pid); found.Type != unix.F_UNLCK && holders.Exhausted(holder) {
			return cuda.Refuse(cuda.Timeout, "%w", process.Held("set "+name, holder))
		}
		time.Sleep(lockEvery)
	}
}

// lockEvery is the time between two looks for the lock of a set, which others move for longer.
const lockEvery = 10 * time.Millisecond

// isMapped reports whether a set is memory that the driver maps, not files.
func isMapped(set control.KeptSet) bool {
	return set.Place == Device || len(set.Chunks) > 0 && set.Chunks[0].Node != nil
}

// end is one end of a chunk's copy.
type end struct {
	files []*os.File
	each  uint64 // bytes of memory behind each descriptor, or 0 for one file
	node  *int   // not nil if they are extents, which belong to this process
}

// close gives extents back.
func (e *end) close() {
	for _, file := range e.files {
		if e.node != nil {
			_, _, _ = Ask(control.SetRequest{Op: control.Give, Node: e.node}, int(file.Fd()))
		}
		_ = file.Close()
	}
}

// mover copies chunks.
type mover struct {
	directory *store.Directory    // of a copy on disk
	driver    *cuda.Driver        // nil if no end is mapped
	direct    bool                // both ends are mapped
	promise   *hostmemory.Promise // of the memory that files in memory take, or nil without such files
	device    cuda.Device
	context   cuda.Context
}

func (m *mover) open(uuid string) (err error) {
	if m.driver, err = cuda.Open("libcuda.so.1"); err != nil {
		return err
	}
	if m.device = cuda.Device(m.driver.DeviceBy(uuid)); m.device < 0 {
		return cuda.Refuse(cuda.NotSupported, "its device is %s, which is not seen here (CUDA_VISIBLE_DEVICES?)", uuid)
	}
	m.context, err = m.driver.DevicePrimaryCtxRetain(m.device)
	return err
}

func (m *mover) close() { _ = m.driver.DevicePrimaryCtxRelease(m.device) }

// take takes extents of reserved host memory for all chunks, and reports whether there are enough.
func (m *mover) take(set control.KeptSet, made []end) bool {
	if m.driver == nil {
		return false
	}
	node, _ := m.driver.HostNode(m.device) // a driver before CUDA 12.2 does not know, and nothing is reserved then
	for i, chunk := range set.Chunks {
		made[i].each, made[i].node = cuda.HostExtent, &node
		for room := uint64(0); room < chunk.Bytes; room += cuda.HostExtent {
			_, extent, err := Ask(control.SetRequest{Op: control.Take, Node: &node, Bytes: cuda.HostExtent}, -1)
			if err != nil {
				for j := range made {
					made[j].close()
					made[j] = end{}
				}
				return false
			}
			made[i].files = append(made[i].files, os.NewFile(uintptr(extent), "the copy"))
		}
	}
	return true
}

// copy copies the chunks to ends, which it makes unless they were taken.
func (m *mover) copy(set control.KeptSet, made []end, to string) error {
	workers := runtime.GOMAXPROCS(0) // for the system gives and copies memory slowly
	if m.direct {
		workers = 3 // the device copies for one while another maps
	}
	errs := make([]error, min(len(made), workers))
	var running sync.WaitGroup
	var next atomic.Int32
	for n := range errs {
		running.Go(func() {
			errs[n] = m.work(func(w worker) (err error) {
				for i := int(next.Add(1)) - 1; err == nil && i < len(made); i = int(next.Add(1)) - 1 {
					if err = m.copyChunk(w, set.Chunks[i], set.Place, &made[i], to); m.promise != nil {
						m.promise.Touched(set.Chunks[i].Bytes)
					}
				}
				return err
			})
		})
	}
	running.Wait()
	return cmp.Or(errs...)
}

// put gives the keeper the copy of a set.
func put(set control.KeptSet, manifest int, made []end, to string) (control.KeptSet, error) {
	id := descriptors.Number()
	for i := range made {
		each, node := cmp.Or(made[i].each, set.Chunks[i].Bytes), made[i].node
		made[i].node = nil // the keeper has what it was given; an extent must not be given twice
		for n, file := range made[i].files {
			request := control.SetRequest{Op: control.Put, Set: id, Name: set.Name, Device: set.Device, To: to,
				Before: i + min(n, 1), Joins: n > 0, Chunk: descriptors.Number(),
				Bytes: min(each, set.Chunks[i].Bytes-uint64(n)*each), Node: node}
			if _, _, err := Ask(request, int(file.Fd())); err != nil {
				return set, err
			}
		}
	}
	reply, _, err := Ask(control.SetRequest{Op: control.Seal, Set: id, Before: len(made), Original: set.ID,
		Tensors: set.Tensors}, manifest)
	if cuda.Code(err) == int(cuda.NotReady) {
		return set, errChanged
	} else if err != nil {
		return set, err
	}
	return reply.Sets[0], nil
}

// lent returns the keeper's descriptors of a chunk.
func lent(chunk control.KeptChunk, place string) (source end, err error) {
	if place == Device {
		source.each = chunk.Bytes
	} else if chunk.Node != nil {
		source.each = cuda.HostExtent
	}
	for _, id := range append([]uint64{chunk.ID}, chunk.More...) {
		_, descriptor, failed := Ask(control.LendRequest{Op: control.Lend, Memory: id}, -1)
		source.files = append(source.files, os.NewFile(uintptr(descriptor), "the set"))
		err = cmp.Or(err, failed)
	}
	return source, err
}

// copyChunk copies a chunk, to an end that it makes unless that was taken.
func (m *mover) copyChunk(w worker, chunk control.KeptChunk, place string, made *end, to string) error {
	source, err := lent(chunk, place)
	defer source.close()
	if err == nil && made.files == nil {
		*made, err = m.make(to, chunk.Bytes)
	}
	if err != nil {
		return err
	}
	return m.reach(w, source, func(from memory) error {
		return m.reach(w, *made, func(to memory) error { return w.copy(to, from, chunk.Bytes) })
	})
}

// memory is a file, or mapped.
type memory interface {
	io.ReaderAt
	io.WriterAt
}

// reach makes an end readable and writable for the time of a call.
func (m *mover) reach(w worker, e end, use func(memory) error) error {
	if e.each == 0 {
		return use(e.files[0])
	}
	var handles []cuda.Handle
	for _, file := range e.files {
		handle, err := m.driver.MemImport(int(file.Fd()))
		if err != nil {
			return err
		}
		defer func() { _ = m.driver.MemRelease(handle) }()
		handles = append(handles, handle)
	}
	return m.driver.Mapped(handles, e.each, int(m.device), func(address uintptr) error {
		return use(mapped{m.driver, w.stream, address})
	})
}

// pieceSize is what one read and one write copy: many pages, and little pinned memory.
const pieceSize = 8 << 20

// worker is what one thread copies with.
type worker struct {
	driver *cuda.Driver
	stream cuda.Stream
	buffer []byte // for pieces between a file and another end; pinned where that is mapped
}

// work makes a worker for the time of a call.
func (m *mover) work(do func(worker) error) error {
	if m.driver == nil {
		return do(worker{buffer: make([]byte, pieceSize)})
	}
	return m.driver.OnStream(m.context, func(stream cuda.Stream) error {
		if m.direct {
			return do(worker{driver: m.driver, stream: stream})
		}
		buffer, err := m.driver.MemHostAlloc(pieceSize)
		if err != nil {
			return err
		}
		defer func() { _ = m.driver.MemFreeHost(buffer) }()
		return do(worker{m.driver, stream, unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&buffer))), pieceSize)})
	})
}

// copy copies in one call if both ends are mapped, else piece by piece. It reads and writes files, because to map and
// pin a file costs more than to copy it.
func (w worker) copy(to, from memory, size uint64) error {
	target, both := to.(mapped)
	if source, also := from.(mapped); both && also {
		err := w.driver.MemcpyDtoDAsync(target.address, source.address, size, w.stream)
		return cmp.Or(err, w.driver.StreamSynchronize(w.stream))
	}
	for offset := uint64(0); offset < size; offset += pieceSize {
		piece := w.buffer[:min(pieceSize, size-offset)]
		if _, err := from.ReadAt(piece, int64(offset)); err != nil {
			return err
		}
		if _, err := to.WriteAt(piece, int64(offset)); err != nil {
			return err
		}
	}
	return nil
}

// mapped is mapped memory, of a device or of the host.
type mapped struct {
	driver  *cuda.Driver
	stream  cuda.Stream
	address uintptr
}

func (m mapped) ReadAt(host []byte, offset int64) (int, error) {
	err := m.driver.MemcpyDtoHAsync(uintptr(unsafe.Pointer(&host[0])), m.address+uintptr(offset), uint64(len(host)),
		m.stream)
	return len(host), cmp.Or(err, m.driver.StreamSynchronize(m.stream))
}

func (m mapped) WriteAt(host []byte, offset int64) (int, error) {
	err := m.driver.MemcpyHtoDAsync(m.address+uintptr(offset), uintptr(unsafe.Pointer(&host[0])), uint64(len(host)),
		m.stream)
	return len(host), cmp.Or(err, m.driver.StreamSynchronize(m.stream))
}

// make makes memory on the device, an empty file in memory, or one on disk that has its space.
func (m *mover) make(to string, size uint64) (made end, err error) {
	if to != Device {
		var file *os.File
		if to == control.ToDisk {
			file, err = m.directory.NewFile(size)
		} else {
			var descriptor int
			descriptor, err = unix.MemfdCreate("tms-set", unix.MFD_CLOEXEC)
			file = os.NewFile(uintptr(descriptor), "the copy")
		}
		if err != nil {
			return end{}, cuda.Refuse(cuda.OperatingSystem, "a copy cannot be made (--to %s): %w", to, err)
		}
		return end{files: []*os.File{file}}, nil
	}
	descriptor, err := m.driver.MemCreateFile(size, m.driver.Exportable(int(m.device)))
	return end{files: []*os.File{os.NewFile(uintptr(descriptor), "the copy")}, each: size}, err
}
