package replay

import (
	"cmp"
	"slices"
)

// Timeline is the memory of a pool over a trace, for drawing.
type Timeline struct {
	requested, live, reserved []uint64 // after each operation
	blocks, segments          []rectangle
	failed                    [][2]uint64           // operations, and what they asked for
	open                      map[uintptr]rectangle // segments that are held
}

// rectangle is bytes of memory from one operation to another, which is the first without it.
type rectangle struct {
	address   uint64 // in the timeline's own addresses once it is closed
	offset    uint64 // as events print it
	size      uint64
	requested uint64
	from, to  int
}

func (t *Timeline) sample(requested, live, reserved uint64) {
	t.requested = append(t.requested, requested)
	t.live = append(t.live, live)
	t.reserved = append(t.reserved, reserved)
}

func (t *Timeline) block(b observed, to int) {
	t.blocks = append(t.blocks, rectangle{address: uint64(b.Address), size: b.Size, requested: b.requested, from: b.since, to: to})
}

func (t *Timeline) segment(address uintptr, size uint64, held bool) {
	now := len(t.live)
	if held {
		if t.open == nil {
			t.open = map[uintptr]rectangle{}
		}
		t.open[address] = rectangle{address: uint64(address), size: size, from: now}
		return
	}
	s := t.open[address]
	delete(t.open, address)
	s.to = now
	t.segments = append(t.segments, s)
}

// close ends what is still held and moves all addresses together, since a device's are far apart: ranges
// that were never in a segment take no room.
func (t *Timeline) close(base uintptr) {
	for _, s := range t.open {
		s.to = len(t.live)
		t.segments = append(t.segments, s)
	}
	t.open = nil
	byAddress := func(a, b rectangle) int {
		return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.from, b.from))
	}
	slices.SortFunc(t.segments, byAddress)
	slices.SortFunc(t.blocks, byAddress)
	var end, gaps uint64 // of the segments so far
	next := 0            // block
	for i := range t.segments {
		s := &t.segments[i]
		if s.address > end {
			gaps += s.address - end
		}
		end = max(end, s.address+s.size)
		for ; next < len(t.blocks) && t.blocks[next].address < end; next++ {
			t.blocks[next].place(gaps, base)
		}
		s.place(gaps, base)
	}
}

func (r *rectangle) place(gaps uint64, base uintptr) {
	r.offset = r.address - uint64(base)
	r.address -= gaps
}

// top is the end of the addresses.
func (t *Timeline) top() (end uint64) {
	for _, s := range t.segments {
		end = max(end, s.address+s.size)
	}
	return end
}

// series is the curves at no more than count operations: of each group of them the highest values, so
// that no peak is lost.
func (t *Timeline) series(count int) (at []int, requested, live, reserved []uint64) {
	operations := len(t.live)
	count = min(count, operations)
	for i := range count {
		from, to := i*operations/count, (i+1)*operations/count
		at = append(at, to-1)
		requested = append(requested, slices.Max(t.requested[from:to]))
		live = append(live, slices.Max(t.live[from:to]))
		reserved = append(reserved, slices.Max(t.reserved[from:to]))
	}
	return at, requested, live, reserved
}

// largest returns the blocks that take most of the map.
func (t *Timeline) largest(count int) []rectangle {
	blocks := slices.Clone(t.blocks)
	area := func(r rectangle) float64 { return float64(r.size) * float64(r.to-r.from) }
	slices.SortFunc(blocks, func(a, b rectangle) int {
		return cmp.Or(cmp.Compare(area(b), area(a)), cmp.Compare(a.from, b.from))
	})
	return blocks[:min(count, len(blocks))]
}
