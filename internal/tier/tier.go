// Package tier copies a set of the keeper to host memory, to disk, or back to its device. The copy is another set,
// which takes over the name when it is complete (package keeper): what ends before that leaves the set where it was.
package tier

import (
	"cmp"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/hostmemory"
	"tms/internal/keeper"
	"tms/internal/readable"
	"tms/vmm/cuda"
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
	reply, manifest, err := keeper.Ask(control.Request{Op: control.Open, Name: name}, -1)
	if err != nil {
		return control.KeptSet{}, err
	}
	set, err := use(reply.Sets[0], manifest)
	_ = unix.Close(manifest) // which ends a lock
	_, _, failed := keeper.Ask(control.Request{Op: control.Close, Set: reply.Sets[0].ID}, -1)
	return set, cmp.Or(err, failed)
}

var errChanged = errors.New("another process has moved, replaced or opened the set meanwhile")

// move is Move of a set that is open. One process at a time moves it, and has locked its manifest meanwhile (fcntl: all
// have one open file).
func move(set control.KeptSet, manifest int, to, directory string) (control.KeptSet, error) {
	err := unix.FcntlFlock(uintptr(manifest), unix.F_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK})
	reply, _, failed := keeper.Ask(control.Request{Op: control.List}, -1)
	if err = cmp.Or(err, failed); err != nil {
		return set, err
	}
	if !slices.ContainsFunc(reply.Sets, func(s control.KeptSet) bool { return s.ID == set.ID && !s.Replaced }) {
		return set, errChanged
	}
	if set.Place == to {
		return set, nil
	}
	if err = keeper.InUse(set, os.Getpid()); err != nil {
		return set, err
	}
	if free := min(hostmemory.Machine(), hostmemory.Group("self")); to == control.ToHost && free < set.Bytes {
		return set, cuda.Refuse(cuda.OperatingSystem, "it needs %s of host memory, and %s are available; --to disk "+
			"needs none", readable.Bytes(set.Bytes), readable.Bytes(free))
	}
	m := mover{directory: directory, memory: -1}
	if to == control.ToHost {
		m.memory = hugePages()
		defer func() { _ = unix.Close(m.memory) }()
	}
	if set.Place == Device || to == Device {
		if err = m.open(set.Device); err != nil {
			return set, err
		}
		defer m.close()
	}
	return m.copy(set, manifest, to)
}

// mover copies chunks.
type mover struct {
	directory string
	memory    int          // of files in host memory; -1: none
	driver    *cuda.Driver // nil: none of it is on a device
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

// copy makes the other set.
func (m *mover) copy(set control.KeptSet, manifest int, to string) (control.KeptSet, error) {
	made := make([]*os.File, len(set.Chunks))
	errs := make([]error, min(len(set.Chunks), runtime.GOMAXPROCS(0))) // for the system gives and copies memory slowly
	var workers sync.WaitGroup
	var next atomic.Int32
	for n := range errs {
		workers.Go(func() {
			errs[n] = m.work(func(w worker) (err error) {
				for i := int(next.Add(1)) - 1; err == nil && i < len(made); i = int(next.Add(1)) - 1 {
					made[i], err = m.copyChunk(w, set.Chunks[i], set.Place, to)
				}
				return err
			})
		})
	}
	workers.Wait()
	defer func() {
		for _, file := range made {
			_ = file.Close() // nil: it failed
		}
	}()
	if err := cmp.Or(errs...); err != nil {
		return set, err
	}
	id := max(1, rand.Uint64())
	for i, chunk := range set.Chunks {
		_, _, err := keeper.Ask(control.Request{Op: control.Put, Set: id, Name: set.Name, Device: set.Device,
			Share: max(1, rand.Uint64()), Bytes: chunk.Bytes, Before: i, To: to}, int(made[i].Fd()))
		if err != nil {
			return set, err
		}
	}
	reply, _, err := keeper.Ask(control.Request{Op: control.Seal, Set: id, Before: len(made), Share: set.ID,
		Tensors: set.Tensors}, manifest)
	if cuda.Code(err) == int(cuda.NotReady) {
		return set, errChanged
	} else if err != nil {
		return set, err
	}
	return reply.Sets[0], nil
}

// lent returns the keeper's descriptor of a chunk.
func lent(chunk control.KeptChunk) (*os.File, error) {
	_, descriptor, err := keeper.Ask(control.Request{Op: control.Lend, Share: chunk.ID}, -1)
	return os.NewFile(uintptr(descriptor), "the set"), err
}

// copyChunk makes a chunk's copy. The file is the memory's descriptor, on the device, too.
func (m *mover) copyChunk(w worker, chunk control.KeptChunk, from, to string) (made *os.File, err error) {
	source, err := lent(chunk)
	if err != nil {
		return nil, err
	}
	defer func() { _ = source.Close() }()
	var handle cuda.Handle
	if to == Device {
		if handle, err = m.driver.MemCreateWith(chunk.Bytes, m.driver.Exportable(int(m.device))); err == nil {
			var descriptor int
			descriptor, err = m.driver.MemExport(handle)
			made = os.NewFile(uintptr(descriptor), "the copy")
		}
	} else if made, err = m.newFile(to, int64(chunk.Bytes)); err == nil && from == Device {
		handle, err = m.driver.MemImport(int(source.Fd()))
	}
	if handle != 0 {
		defer func() { _ = m.driver.MemRelease(handle) }()
	}
	switch {
	case err != nil:
	case handle == 0:
		err = w.copy(made, source, chunk.Bytes)
	default:
		err = m.driver.Mapped(handle, chunk.Bytes, int(m.device), func(address uintptr) error {
			device := deviceMemory{m.driver, w.stream, address}
			if to == Device {
				return w.copy(device, source, chunk.Bytes)
			}
			return w.copy(made, device, chunk.Bytes)
		})
	}
	if err != nil {
		_ = made.Close()
		return nil, err
	}
	return made, nil
}

// pieceSize is what one read and one write copy: many pages, and little pinned memory.
const pieceSize = 8 << 20

// worker is what one thread copies with.
type worker struct {
	stream cuda.Stream
	buffer []byte // pinned where a device is one end
}

// work makes a worker for the time of a call.
func (m *mover) work(do func(worker) error) error {
	if m.driver == nil {
		return do(worker{buffer: make([]byte, pieceSize)})
	}
	return m.driver.OnStream(m.context, func(stream cuda.Stream) error {
		buffer, err := m.driver.MemHostAlloc(pieceSize)
		if err != nil {
			return err
		}
		defer func() { _ = m.driver.MemFreeHost(buffer) }()
		return do(worker{stream, unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&buffer))), pieceSize)})
	})
}

// copy copies piece by piece. A file is read and written, not mapped and pinned: where the system has memory that
// outlives a process in small pages only, mapping and pinning each costs more than copying it.
func (w worker) copy(to io.WriterAt, from io.ReaderAt, size uint64) error {
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

// deviceMemory reads and writes mapped memory of a device.
type deviceMemory struct {
	driver  *cuda.Driver
	stream  cuda.Stream
	address uintptr
}

func (m deviceMemory) ReadAt(host []byte, offset int64) (int, error) {
	err := m.driver.MemcpyDtoHAsync(uintptr(unsafe.Pointer(&host[0])), m.address+uintptr(offset), uint64(len(host)),
		m.stream)
	return len(host), cmp.Or(err, m.driver.StreamSynchronize(m.stream))
}

func (m deviceMemory) WriteAt(host []byte, offset int64) (int, error) {
	err := m.driver.MemcpyHtoDAsync(m.address+uintptr(offset), uintptr(unsafe.Pointer(&host[0])), uint64(len(host)),
		m.stream)
	return len(host), cmp.Or(err, m.driver.StreamSynchronize(m.stream))
}

// newFile returns an empty file. A disk's has its room already, so that a full disk is known before copying starts.
func (m *mover) newFile(to string, size int64) (file *os.File, err error) {
	if to == control.ToHost {
		var descriptor int
		descriptor, err = memoryFile(m.memory)
		file = os.NewFile(uintptr(descriptor), "the copy")
	} else if file, err = os.CreateTemp(m.directory, "tms-set-"); err == nil {
		err = cmp.Or(os.Remove(file.Name()), unix.Fallocate(int(file.Fd()), 0, 0, size))
	}
	if err != nil {
		_ = file.Close()
		return nil, cuda.Refuse(cuda.OperatingSystem, "a copy cannot be made (--to %s, %s): %w", to, m.directory, err)
	}
	return file, nil
}
