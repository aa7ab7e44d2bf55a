package source

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/pool"
)

// Host is a pool.Source of host memory, never paused, with a device's events. (Paddle's CUDAPinned-, CPUAllocator)
type Host struct{ *Plain }

// NewHost makes a source of host memory: "pinned", which all devices can access (cuMemHostAlloc), or "host", ordinary
// memory that is allocated when it is first written (mmap). Errors: pool.ErrOption for other words; *cuda.Error if
// there is no such device.
func NewHost(driver *cuda.Driver, ordinal int, memory string, state func() State) (*Host, error) {
	if memory != "pinned" && memory != "host" {
		return nil, fmt.Errorf("%w: memory=%q: give device, pinned or host", pool.ErrOption, memory)
	}
	d, err := newDevice(driver, ordinal)
	if err != nil {
		return nil, err
	}
	h := &Host{&Plain{device: d, state: state, note: func(int64) {}}}
	if memory == "host" {
		h.malloc = func(size uint64) (uintptr, error) {
			made, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				return 0, fmt.Errorf("%w: mmap: %w", cuda.OutOfMemory, err)
			}
			return uintptr(made), nil
		}
		h.free = func(address uintptr, size uint64) error {
			return unix.MunmapPtr(unsafe.Add(unsafe.Pointer(nil), address), uintptr(size)) // not Go's memory
		}
		return h, nil
	}
	h.malloc = func(size uint64) (address uintptr, err error) {
		err = h.driver.With(h.context, func() error {
			address, err = driver.MemHostAlloc(size)
			return err
		})
		return address, err
	}
	h.free = func(address uintptr, _ uint64) error {
		return h.driver.With(h.context, func() error { return driver.MemFreeHost(address) })
	}
	return h, nil
}

func (h *Host) Allocate(size uint64) (uintptr, error) {
	address, err := h.Plain.Allocate(size)
	if errors.Is(err, pool.ErrOutOfMemory) {
		err = fmt.Errorf("%w: a segment of %s of host memory%.0w", pool.ErrOutOfMemory, readable.Bytes(size), err)
	}
	return address, err
}

// Memory is pool.Memory.Memory, of the host. (sysinfo)
func (h *Host) Memory() (free, total uint64, err error) {
	var info unix.Sysinfo_t
	err = unix.Sysinfo(&info)
	return (info.Freeram + info.Bufferram) * uint64(info.Unit), info.Totalram * uint64(info.Unit), err
}
