package pool

import (
	"fmt"

	"tms/internal/readable"
)

// Endless is a Source of bare addresses that costs nothing, for pools that give nothing back.
type Endless struct{ used uintptr }

// Allocate is Source.Allocate.
func (e *Endless) Allocate(size uint64) (uintptr, error) {
	address := 1<<40 + e.used
	e.used += uintptr(size+rangeAlignment-1) &^ (rangeAlignment - 1)
	return address, nil
}

// Free is Source.Free.
func (*Endless) Free(uintptr, uint64) error { return nil }

// Range is a Source of bare addresses, for replays and tests: segments of one range of numbers, placed
// first fit. Nothing is behind them. A call costs O(log n) with n holes.
type Range struct {
	base     uintptr
	capacity uint64
	free     *hole // root of a treap by address; holes are never adjacent
	random   uint64
	held     map[uintptr]uint64
}

// hole is a node of the treap, a search tree by start that is a heap by priority.
type hole struct {
	start, size uint64 // start counts from base
	most        uint64 // the largest size in this subtree
	priority    uint64
	left, right *hole
}

const rangeAlignment = 512

// NewRange returns a source of capacity bytes that begin at base.
func NewRange(base uintptr, capacity uint64) *Range {
	r := &Range{base: base, capacity: capacity, random: 1, held: map[uintptr]uint64{}}
	r.free = r.hole(0, capacity)
	return r
}

// Allocate is Source.Allocate.
func (r *Range) Allocate(size uint64) (uintptr, error) {
	rounded := (size + rangeAlignment - 1) &^ (rangeAlignment - 1)
	if rounded < size || size == 0 {
		return 0, fmt.Errorf("%w: a segment of %s", ErrOutOfMemory, readable.Bytes(size))
	}
	if r.free.largest() < rounded {
		return 0, fmt.Errorf("%w: a segment of %s in a range of %s", ErrOutOfMemory, readable.Bytes(size), readable.Bytes(r.capacity))
	}
	var start uint64
	start, r.free = r.free.take(rounded)
	address := r.base + uintptr(start)
	r.held[address] = rounded
	return address, nil
}

// Free is Source.Free.
func (r *Range) Free(address uintptr, size uint64) error {
	rounded := (size + rangeAlignment - 1) &^ (rangeAlignment - 1)
	if r.held[address] != rounded || rounded == 0 {
		return fmt.Errorf("segment %#x of %d bytes: %w", address, size, ErrInvalidAddress)
	}
	delete(r.held, address)
	start := uint64(address - r.base)
	below, above := r.free.split(start)
	if last := below.last(); last != nil && last.start+last.size == start {
		below, _ = below.split(last.start)
		start, rounded = last.start, last.size+rounded
	}
	if first := above.first(); first != nil && start+rounded == first.start {
		_, above = above.split(first.start + 1)
		rounded += first.size
	}
	r.free = join(join(below, r.hole(start, rounded)), above)
	return nil
}

// Held returns how many segments are out.
func (r *Range) Held() int { return len(r.held) }

// hole makes a node; priorities are a xorshift sequence, so that a range does the same every time.
func (r *Range) hole(start, size uint64) *hole {
	r.random ^= r.random << 13
	r.random ^= r.random >> 7
	r.random ^= r.random << 17
	return &hole{start: start, size: size, most: size, priority: r.random}
}

func (h *hole) largest() uint64 {
	if h == nil {
		return 0
	}
	return h.most
}

func (h *hole) update() { h.most = max(h.size, h.left.largest(), h.right.largest()) }

// take cuts size bytes off the lowest hole that has them; there is one.
func (h *hole) take(size uint64) (start uint64, rest *hole) {
	switch {
	case h.left.largest() >= size:
		start, h.left = h.left.take(size)
	case h.size >= size:
		start = h.start
		h.start += size
		h.size -= size
		if h.size == 0 {
			return start, join(h.left, h.right)
		}
	default:
		start, h.right = h.right.take(size)
	}
	h.update()
	return start, h
}

// split parts the holes that begin below start from the others.
func (h *hole) split(start uint64) (below, above *hole) {
	switch {
	case h == nil:
		return nil, nil
	case h.start < start:
		h.right, above = h.right.split(start)
		h.update()
		return h, above
	default:
		below, h.left = h.left.split(start)
		h.update()
		return below, h
	}
}

// join is the opposite of split.
func join(below, above *hole) *hole {
	switch {
	case below == nil:
		return above
	case above == nil:
		return below
	case below.priority > above.priority:
		below.right = join(below.right, above)
		below.update()
		return below
	default:
		above.left = join(below, above.left)
		above.update()
		return above
	}
}

func (h *hole) first() *hole {
	for h != nil && h.left != nil {
		h = h.left
	}
	return h
}

func (h *hole) last() *hole {
	for h != nil && h.right != nil {
		h = h.right
	}
	return h
}
