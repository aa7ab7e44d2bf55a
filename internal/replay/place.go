package replay

import (
	"errors"
	"fmt"
	"runtime"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/space"
)

// Place is where the segments of replayed pools come from. It is used by one replay at a time.
type Place struct {
	name   string
	limit  uint64  // the most bytes that a source gives out; 0: no limit
	base   uintptr // addresses count from here
	enter  func() error
	source func() pool.Source
	memory func() (free, total uint64, err error) // nil: it has no end
}

// ErrPlace: there is no place of that name.
var ErrPlace = errors.New("no such source")

// In the simulated place addresses begin here: 0 is no address, and no power of two that a kind may align
// to is larger.
const (
	simulatedBase     = 1 << 40
	simulatedCapacity = 1 << 46
)

// NewPlace returns the place of a name: sim, numbers from 0 on with nothing behind them; cuda, memory of
// the first device by cuMemAlloc; vmm, pausable segments on the first device. limit is in bytes, 0 for
// none. Errors: ErrPlace, or the driver's.
func NewPlace(name string, limit uint64) (*Place, error) {
	p := &Place{name: name, limit: limit}
	if name == "sim" {
		p.base = simulatedBase
		p.enter = func() error { return nil }
		p.source = func() pool.Source { return pool.NewRange(simulatedBase, simulatedCapacity) }
		return p, nil
	}
	if name != "cuda" && name != "vmm" {
		return nil, fmt.Errorf("%w: %q; there are sim, cuda and vmm", ErrPlace, name)
	}
	driver, err := cuda.Open("libcuda.so.1")
	if err != nil {
		return nil, fmt.Errorf("--source %s needs a GPU: %w", name, err)
	}
	device, err := driver.DeviceGet(0)
	if err != nil {
		return nil, fmt.Errorf("--source %s needs a GPU: %w", name, err)
	}
	context, err := driver.DevicePrimaryCtxRetain(device)
	if err != nil {
		return nil, err
	}
	p.enter = func() error { return driver.CtxSetCurrent(context) }
	p.memory = driver.MemGetInfo
	if name == "cuda" {
		p.source = func() pool.Source { return plain{driver} }
		return p, nil
	}
	engine := vmm.New(driver, func(uintptr, uint64) error { return nil })
	p.source = func() pool.Source { return &pausable{engine: engine} }
	return p, nil
}

// visit runs f on a thread that can use the place.
func (p *Place) visit(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.enter(); err != nil {
		return err
	}
	return f()
}

// fresh returns a source that nothing has come from yet.
func (p *Place) fresh() *meter {
	return &meter{Source: p.source(), limit: p.limit, memory: p.memory}
}

// plain is device memory.
type plain struct{ driver *cuda.Driver }

func (s plain) Allocate(size uint64) (uintptr, error) {
	address, err := s.driver.MemAlloc(size)
	return address, refusal(err)
}

func (s plain) Free(address uintptr, _ uint64) error { return s.driver.MemFree(address) }

// pausable is segments of an engine.
type pausable struct {
	engine *vmm.Engine
	room   *pool.Room
}

func (s *pausable) Allocate(size uint64) (uintptr, error) {
	address, err := s.engine.Malloc(vmm.Request{Size: size, Tag: "replay", Room: (*space.Room)(s.room)})
	return address, refusal(err)
}

func (s *pausable) Reserve(room *pool.Room) bool {
	s.room = room
	return true
}

func (s *pausable) Free(address uintptr, _ uint64) error { return s.engine.Free(address, false) }

func (s *pausable) Coalesces(below, above uintptr) bool { return s.engine.OneReservation(below, above) }

// refusal makes an error for want of memory one that pools know.
func refusal(err error) error {
	if errors.Is(err, cuda.OutOfMemory) || errors.Is(err, vmm.ErrTooLarge) {
		return fmt.Errorf("%w: %w", pool.ErrOutOfMemory, err)
	}
	return err
}
