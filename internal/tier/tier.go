// Package tier copies a set of the keeper to host memory, to disk, or back to its device. The copy is another set,
// which takes over the name when it is complete (package keeper): what ends before that leaves the set where it was.
package tier

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
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
	m := mover{directory: directory}
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
	made, errs := make([]int, len(set.Chunks)), make([]error, len(set.Chunks))
	var all sync.WaitGroup
	turns := make(chan bool, min(8, runtime.GOMAXPROCS(0))) // for the system gives host memory slowly
	for i, chunk := range set.Chunks {
		all.Go(func() {
			turns <- true
			made[i], errs[i] = m.copyChunk(chunk, set.Place, to)
			<-turns
		})
	}
	all.Wait()
	defer func() {
		for _, descriptor := range made {
			_ = unix.Close(descriptor) // -1: it failed
		}
	}()
	if err := cmp.Or(errs...); err != nil {
		return set, err
	}
	id := max(1, rand.Uint64())
	for i, chunk := range set.Chunks {
		_, _, err := keeper.Ask(control.Request{Op: control.Put, Set: id, Name: set.Name, Device: set.Device,
			Share: max(1, rand.Uint64()), Bytes: chunk.Bytes, Before: i, To: to}, made[i])
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

// copyChunk returns the descriptor of a chunk's copy, or -1.
func (m *mover) copyChunk(chunk control.KeptChunk, from, to string) (made int, err error) {
	_, source, err := keeper.Ask(control.Request{Op: control.Lend, Share: chunk.ID}, -1)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(source) }()
	made = -1
	var handle cuda.Handle
	if to == Device {
		handle, err = m.driver.MemCreateWith(chunk.Bytes, m.driver.Exportable(int(m.device)))
		if err == nil {
			made, err = m.driver.MemExport(handle)
		}
	} else if made, err = newFile(to, m.directory, int64(chunk.Bytes)); err == nil && from == Device {
		handle, err = m.driver.MemImport(source)
	}
	if handle != 0 {
		defer func() { _ = m.driver.MemRelease(handle) }()
	}
	switch {
	case err != nil:
	case handle == 0:
		err = mapped(made, chunk.Bytes, func(to []byte) error {
			return mapped(source, chunk.Bytes, func(from []byte) error { copy(to, from); return nil })
		})
	case from == Device:
		err = mapped(made, chunk.Bytes, func(host []byte) error { return m.transfer(handle, host, false) })
	default:
		err = mapped(source, chunk.Bytes, func(host []byte) error { return m.transfer(handle, host, true) })
	}
	if err != nil && made >= 0 {
		_ = unix.Close(made)
		made = -1
	}
	return made, err
}

// transfer copies between device memory and host memory. A disk's file cannot be pinned; the driver then goes through
// memory of its own.
func (m *mover) transfer(handle cuda.Handle, host []byte, toDevice bool) error {
	d, size, at := m.driver, uint64(len(host)), uintptr(unsafe.Pointer(&host[0]))
	return d.Mapped(handle, size, int(m.device), func(address uintptr) error {
		return d.OnStream(m.context, func(stream cuda.Stream) error {
			if d.MemHostRegister(at, size) == nil {
				defer func() { _ = d.MemHostUnregister(at) }()
			}
			if toDevice {
				return cmp.Or(d.MemcpyHtoDAsync(address, at, size, stream), d.StreamSynchronize(stream))
			}
			return cmp.Or(d.MemcpyDtoHAsync(at, address, size, stream), d.StreamSynchronize(stream))
		})
	})
}

// newFile returns a file that has its room already: a mapping has no way to say that there is none.
func newFile(to, directory string, size int64) (descriptor int, err error) {
	if to == control.ToHost {
		descriptor, err = unix.MemfdCreate("tms-set", unix.MFD_CLOEXEC)
	} else {
		var file *os.File
		if file, err = os.CreateTemp(directory, "tms-set-"); err == nil {
			defer func() { _ = file.Close() }()
			err = os.Remove(file.Name())
			descriptor, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		}
	}
	if err == nil {
		if err = unix.Fallocate(descriptor, 0, 0, size); err != nil {
			_ = unix.Close(descriptor)
		}
	}
	if err != nil {
		return -1, cuda.Refuse(cuda.OperatingSystem, "a copy cannot be made (--to %s, %s): %w", to, directory, err)
	}
	return descriptor, nil
}

// mapped shows a file's contents for the time of a call.
func mapped(descriptor int, size uint64, use func([]byte) error) error {
	memory, err := unix.Mmap(descriptor, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		err = use(memory)
		_ = unix.Munmap(memory)
	}
	return err
}
