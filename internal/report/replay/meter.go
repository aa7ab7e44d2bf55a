package replay

import (
	"fmt"

	"tms/vmm/pool"
)

// Addresses begin here: 0 is no address, and no kind aligns to a larger power of two.
const (
	firstAddress = 1 << 40
	capacity     = 1 << 46
)

// meter is a source that counts the bytes in use and refuses more than a limit. Like a device it counts bytes, not
// places: with virtual memory, holes do not keep large segments out.
type meter struct {
	pool.Source
	limit    uint64 // 0: none
	reserved uint64

	placements *placements // that follow the segments, or nil
}

func newMeter(limit uint64) *meter {
	return &meter{Source: pool.NewRange(firstAddress, capacity), limit: limit}
}

func (m *meter) Allocate(size uint64) (uintptr, error) {
	if m.limit > 0 && size > m.left() {
		return 0, fmt.Errorf("a segment of %d bytes with %d of %d reserved: %w", size, m.reserved, m.limit,
			pool.ErrOutOfMemory)
	}
	address, err := m.Source.Allocate(size)
	if err == nil {
		m.reserved += size
		m.placements.allocated(address, size)
	}
	return address, err
}

func (m *meter) Free(address uintptr, size uint64) error {
	err := m.Source.Free(address, size)
	if err == nil {
		m.reserved -= size
		m.placements.freed(address)
	}
	return err
}

func (m *meter) left() uint64 { return m.limit - m.reserved }

// bounded is a meter with a limit, for which a pool can ask.
type bounded struct{ *meter }

func (b bounded) Memory() (free, total uint64, err error) { return b.left(), b.limit, nil }

// source returns the meter as the pool is to see it.
func (m *meter) source() pool.Source {
	if m.limit > 0 {
		return bounded{m}
	}
	return m
}
