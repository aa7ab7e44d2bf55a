package source

import (
	"errors"
	"slices"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
)

// Plain is a pool.DeviceSource of CUDA's own memory.
type Plain struct {
	device
	malloc func(size uint64) (uintptr, error)
	free   func(address uintptr, size uint64) error
	state  func() State
	note   func(bytes int64) // for the statistics
	late   []pool.Block      // freed while a stream was being captured
}

// NewPlain makes a source over functions that act like cudaMalloc and cudaFree, on the device with an ordinal. note
// gets the bytes of each segment, negative when it is freed. Errors: *cuda.Error if there is no such device.
func NewPlain(driver *cuda.Driver, ordinal int, malloc func(size uint64) (uintptr, error),
	free func(address uintptr) error, state func() State, note func(bytes int64)) (*Plain, error) {
	d, err := newDevice(driver, ordinal)
	if err != nil {
		return nil, err
	}
	return &Plain{device: d, malloc: malloc, free: func(address uintptr, _ uint64) error { return free(address) },
		state: state, note: note}, nil
}

func (p *Plain) Allocate(size uint64) (address uintptr, err error) {
	if p.state().Capturing {
		err = p.driver.With(p.context, func() error {
			address, err = p.malloc(size)
			return err
		})
	} else if address, err = p.malloc(size); short(err) && p.freeLate() {
		address, err = p.malloc(size)
	}
	if err != nil {
		return 0, p.outOfMemory(size, 0, err)
	}
	p.note(int64(size))
	return address, nil
}

// Reserve is pool.Coalescer.Reserve. It returns false because CUDA refuses a copy across two allocations.
func (p *Plain) Reserve(*pool.Room) bool { return false }

func (p *Plain) Coalesces(_, _ uintptr) bool { return false }

// Free is pool.Source.Free. cudaFree would break a stream's capture, so Free then leaves the memory to a later call.
func (p *Plain) Free(address uintptr, size uint64) error {
	if p.state().Capturing {
		p.late = append(p.late, pool.Block{Address: address, Size: size})
	} else {
		p.freeLate()
		if err := p.free(address, size); err != nil {
			return err
		}
	}
	p.note(-int64(size))
	return nil
}

// freeLate frees what waited for captures, and reports whether anything was freed.
func (p *Plain) freeLate() bool {
	before := len(p.late)
	p.late = slices.DeleteFunc(p.late, func(b pool.Block) bool { return p.free(b.Address, b.Size) == nil })
	return len(p.late) < before
}

// Close frees what waited for captures, and the spare events. What CUDA refuses stays.
func (p *Plain) Close() error {
	if !p.state().Capturing {
		p.freeLate()
	}
	err := p.device.Close()
	if len(p.late) > 0 {
		err = errors.Join(err, vmm.ErrCapturing)
	}
	return err
}
