package pool

import (
	"cmp"
	"fmt"
	"slices"

	"tms/internal/aid/readable"
)

const rangeAlignment = 512

// Endless is a Source of bare addresses without bookkeeping, for pools that give nothing back.
type Endless struct{ used uintptr }

func (e *Endless) Allocate(size uint64) (uintptr, error) {
	address := 1<<40 + e.used
	e.used += uintptr(size+rangeAlignment-1) &^ (rangeAlignment - 1)
	return address, nil
}

func (*Endless) Free(uintptr, uint64) error { return nil }

// Range is a Source of bare addresses, for replays and tests: segments of one range of numbers, placed first fit.
type Range struct {
	capacity uint64
	holes    []Block            // by address, never adjacent
	held     map[uintptr]uint64 // sizes of the segments, by address
}

// NewRange returns a source of capacity bytes that begin at base.
func NewRange(base uintptr, capacity uint64) *Range {
	return &Range{capacity, []Block{{base, capacity}}, map[uintptr]uint64{}}
}

func (r *Range) Allocate(size uint64) (uintptr, error) {
	rounded := (size + rangeAlignment - 1) &^ (rangeAlignment - 1)
	i := slices.IndexFunc(r.holes, func(hole Block) bool { return hole.Size >= rounded })
	if i < 0 || rounded < size || size == 0 {
		return 0, fmt.Errorf("%w: a segment of %s in a range of %s",
			ErrOutOfMemory, readable.Bytes(size), readable.Bytes(r.capacity))
	}
	hole := &r.holes[i]
	address := hole.Address
	r.held[address] = rounded
	if hole.Address, hole.Size = address+uintptr(rounded), hole.Size-rounded; hole.Size == 0 {
		r.holes = slices.Delete(r.holes, i, i+1)
	}
	return address, nil
}

func (r *Range) Free(address uintptr, size uint64) error {
	rounded := (size + rangeAlignment - 1) &^ (rangeAlignment - 1)
	if r.held[address] != rounded || size == 0 {
		return fmt.Errorf("segment %#x of %d bytes: %w", address, size, ErrInvalidAddress)
	}
	delete(r.held, address)
	i, _ := slices.BinarySearchFunc(r.holes, address, func(hole Block, address uintptr) int {
		return cmp.Compare(hole.Address, address)
	})
	end := address + uintptr(rounded)
	if i < len(r.holes) && r.holes[i].Address == end {
		end += uintptr(r.holes[i].Size)
		r.holes = slices.Delete(r.holes, i, i+1)
	}
	if i > 0 && r.holes[i-1].Address+uintptr(r.holes[i-1].Size) == address {
		r.holes[i-1].Size += uint64(end - address)
		return nil
	}
	r.holes = slices.Insert(r.holes, i, Block{address, uint64(end - address)})
	return nil
}

// Held returns the number of segments in use.
func (r *Range) Held() int { return len(r.held) }
