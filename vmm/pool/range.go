package pool

import (
	"fmt"
	"math/bits"

	"tms/internal/readable"
	"tms/vmm/pool/internal/addresses"
	"tms/vmm/pool/internal/ordered"
)

const rangeAlignment = 512

// Endless is a Source of bare addresses without bookkeeping, for pools that give nothing back.
type Endless struct{ used uintptr }

// Allocate is Source.Allocate.
func (e *Endless) Allocate(size uint64) (uintptr, error) {
	address := 1<<40 + e.used
	e.used += uintptr(size+rangeAlignment-1) &^ (rangeAlignment - 1)
	return address, nil
}

// Free is Source.Free.
func (*Endless) Free(uintptr, uint64) error { return nil }

// Range is a Source of bare addresses, for replays and tests: segments of one range of numbers, placed first fit.
type Range struct {
	base     uintptr
	capacity uint64
	holes    ordered.Set             // by class, then by start; holes are never adjacent
	sizes    addresses.Table[uint64] // of the holes, by start, which counts from base
	ends     addresses.Table[uint64] // the starts of the holes, by end
	held     addresses.Table[uint64] // sizes of the segments, by start
}

// NewRange returns a source of capacity bytes that begin at base.
func NewRange(base uintptr, capacity uint64) *Range {
	r := &Range{base: base, capacity: capacity}
	r.open(0, capacity)
	return r
}

// class returns the first key of the holes of a size. Each class is twice the one before, so any hole of a higher class
// fits, and a search looks at few holes of its own class.
func class(size uint64) uint64 { return uint64(bits.Len64(size)) << 56 }

// at returns a start's address in the tables, which is never 0.
func at(start uint64) uintptr { return uintptr(start/rangeAlignment) + 1 }

func (r *Range) open(start, size uint64) {
	r.holes.Insert(class(size)+start/rangeAlignment, 0)
	r.sizes.Insert(at(start), size)
	r.ends.Insert(at(start+size), start)
}

func (r *Range) close(start, size uint64) {
	r.holes.Remove(class(size) + start/rangeAlignment)
	r.sizes.Remove(at(start))
	r.ends.Remove(at(start + size))
}

// fit returns the start and the size of the lowest hole of at least size bytes.
func (r *Range) fit(size uint64) (lowest, hole uint64, found bool) {
	for key := class(size); ; {
		e, any := r.holes.Ceiling(key)
		if !any {
			return lowest, hole, found
		}
		own := e.Key &^ (1<<56 - 1)
		start := (e.Key - own) * rangeAlignment
		key = own + 1<<56
		if found && start > lowest {
			continue
		}
		if has, _ := r.sizes.Find(at(start)); has < size {
			key = e.Key + 1
		} else {
			lowest, hole, found = start, has, true
		}
	}
}

// Allocate is Source.Allocate.
func (r *Range) Allocate(size uint64) (uintptr, error) {
	rounded := (size + rangeAlignment - 1) &^ (rangeAlignment - 1)
	if rounded < size || size == 0 {
		return 0, fmt.Errorf("%w: a segment of %s", ErrOutOfMemory, readable.Bytes(size))
	}
	start, hole, found := r.fit(rounded)
	if !found {
		return 0, fmt.Errorf("%w: a segment of %s in a range of %s",
			ErrOutOfMemory, readable.Bytes(size), readable.Bytes(r.capacity))
	}
	r.close(start, hole)
	if hole > rounded {
		r.open(start+rounded, hole-rounded)
	}
	r.held.Insert(at(start), rounded)
	return r.base + uintptr(start), nil
}

// Free is Source.Free.
func (r *Range) Free(address uintptr, size uint64) error {
	rounded := (size + rangeAlignment - 1) &^ (rangeAlignment - 1)
	start := uint64(address - r.base)
	if held, found := r.held.Find(at(start)); !found || held != rounded || start%rangeAlignment != 0 {
		return fmt.Errorf("segment %#x of %d bytes: %w", address, size, ErrInvalidAddress)
	}
	r.held.Remove(at(start))
	if above, touches := r.sizes.Find(at(start + rounded)); touches {
		r.close(start+rounded, above)
		rounded += above
	}
	if below, touches := r.ends.Find(at(start)); touches {
		r.close(below, start-below)
		start, rounded = below, start-below+rounded
	}
	r.open(start, rounded)
	return nil
}

// Held returns the number of segments in use.
func (r *Range) Held() int { return r.held.Len() }
