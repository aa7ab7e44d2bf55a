package replay

import (
	"fmt"
	"math"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/pool"
	"tms/vmm/pool/source"
)

// Place gives replayed pools their segments. One replay at a time uses it.
type Place struct {
	name   string
	limit  uint64  // the most bytes that a source gives out; 0: no limit
	base   uintptr // addresses count from here
	source func() pool.Source
	visit  func(f func() error) error // runs f on a thread with access to the place
}

// Addresses of the simulated place begin here: 0 is no address, and no kind aligns to a larger power of two.
const (
	simulatedBase     = 1 << 40
	simulatedCapacity = 1 << 46
)

// NewPlace returns the place of a name: sim, bare numbers from 0 on; cuda, memory of the first device by cuMemAlloc;
// vmm, pausable segments on the first device. limit is in bytes; 0: none. Errors: the driver's, and
// for another name.
func NewPlace(name string, limit uint64) (*Place, error) {
	p := &Place{name: name, limit: limit}
	switch name {
	case "sim":
		p.base = simulatedBase
		p.source = func() pool.Source { return pool.NewRange(simulatedBase, simulatedCapacity) }
		p.visit = func(f func() error) error { return f() }
		return p, nil
	case "cuda", "vmm":
		if err := p.onDevice(); err != nil {
			return nil, fmt.Errorf("--source %s needs a GPU: %w", name, err)
		}
		return p, nil
	}
	return nil, fmt.Errorf("no such source: %q; there are sim, cuda and vmm", name)
}

func (p *Place) onDevice() error {
	driver, err := cuda.Open("libcuda.so.1")
	if err != nil {
		return err
	}
	device, err := driver.DeviceGet(0)
	if err != nil {
		return err
	}
	context, err := driver.DevicePrimaryCtxRetain(device)
	if err != nil {
		return err
	}
	p.visit = func(f func() error) error { return driver.With(context, f) }
	engine := vmm.New(driver, func(uintptr, uint64) error { return nil })
	state := func() source.State { return source.State{} }
	if p.name == "cuda" {
		plain, err := source.NewPlain(engine, driver, 0, driver.MemAlloc, driver.MemFree, state)
		p.source = func() pool.Source { return plain }
		return err
	}
	segments, err := source.NewSegments(engine, driver, vmm.Request{Tag: "replay"}, state)
	p.source = func() pool.Source {
		fresh := *segments // not with an earlier pool's room
		return &fresh
	}
	return err
}

// meter is a source that counts the bytes in use and refuses more than a limit. Like a device it counts bytes, not
// places: with virtual memory, holes do not keep large segments out.
type meter struct {
	pool.Source
	limit    uint64 // 0: none
	reserved uint64
	changed  func(address uintptr, size uint64, held bool) // called for each segment, unless nil
}

// fresh returns a source of which nothing is in use.
func (p *Place) fresh() *meter { return &meter{Source: p.source(), limit: p.limit} }

func (m *meter) Allocate(size uint64) (uintptr, error) {
	if m.limit > 0 && size > m.left() {
		return 0, fmt.Errorf("a segment of %d bytes with %d of %d reserved: %w", size, m.reserved, m.limit,
			pool.ErrOutOfMemory)
	}
	address, err := m.Source.Allocate(size)
	if err == nil {
		m.reserved += size
		m.tell(address, size, true)
	}
	return address, err
}

func (m *meter) Free(address uintptr, size uint64) error {
	err := m.Source.Free(address, size)
	if err == nil {
		m.reserved -= size
		m.tell(address, size, false)
	}
	return err
}

func (m *meter) tell(address uintptr, size uint64, held bool) {
	if m.changed != nil {
		m.changed(address, size, held)
	}
}

// left returns the bytes that the limit leaves; 0 without a limit.
func (m *meter) left() uint64 { return m.limit - min(m.limit, m.reserved) }

// Reserve is pool.Coalescer.Reserve.
func (m *meter) Reserve(room *pool.Room) bool {
	source, ok := m.Source.(pool.Coalescer)
	return ok && source.Reserve(room)
}

// Coalesces is pool.Coalescer.Coalesces.
func (m *meter) Coalesces(below, above uintptr) bool {
	source, ok := m.Source.(pool.Coalescer)
	return ok && source.Coalesces(below, above)
}

// bounded is a meter that is a pool.Memory too.
type bounded struct{ *meter }

func (b bounded) Memory() (free, total uint64, err error) {
	free, total = math.MaxUint64, math.MaxUint64
	if device, ok := b.Source.(pool.Memory); ok {
		free, total, err = device.Memory()
	}
	if b.limit > 0 {
		free, total = min(free, b.left()), min(total, b.limit)
	}
	return free, total, err
}

// source returns the meter with the interfaces that the pool may see.
func (m *meter) source() pool.Source {
	if _, ok := m.Source.(pool.Memory); ok || m.limit > 0 {
		return bounded{m}
	}
	return m
}
