package replay

import (
	"fmt"

	"tms/vmm/pool"
)

// meter is a source that counts what is out and refuses what goes beyond a limit. It counts bytes, not
// places, as a device does: with virtual memory its holes do not keep large segments out.
type meter struct {
	pool.Source
	limit    uint64 // 0: none
	reserved uint64
	memory   func() (free, total uint64, err error)
	changed  []func(address uintptr, size uint64, held bool) // listeners
}

func (m *meter) Allocate(size uint64) (uintptr, error) {
	if m.limit > 0 && size > m.limit-m.reserved {
		return 0, fmt.Errorf("a segment of %d bytes with %d of %d reserved: %w", size, m.reserved, m.limit, pool.ErrOutOfMemory)
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
	for _, changed := range m.changed {
		changed(address, size, held)
	}
}

// left is how many bytes the limit leaves; 0 when there is none.
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
	if b.memory == nil {
		return b.limit - b.reserved, b.limit, nil
	}
	free, total, err = b.memory()
	if b.limit > 0 {
		free, total = min(free, b.limit-b.reserved), min(total, b.limit)
	}
	return free, total, err
}

// source is the meter as what it is to a pool.
func (m *meter) source() pool.Source {
	if m.limit > 0 || m.memory != nil {
		return bounded{m}
	}
	return m
}
