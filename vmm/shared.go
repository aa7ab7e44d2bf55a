package vmm

import "math/bits"

// shared is what a segment of one granule knows of the small allocations that it consists of. It is flat
// and dense: a million of them cost the garbage collector nothing, and one costs two cache lines.
type shared struct {
	groups []group
	units  int
	from   int // the groups before this one are full
	live   int
	bytes  uint64 // as asked for
	listed bool   // in its tag's list of those with room
}

// group is 64 units, a bit each, the lowest first.
type group struct {
	used    uint64
	starts  uint64           // first units of allocations
	freeing uint64           // of those, the ones that a free has, or has deferred
	spare   [perGroup]uint16 // by first units: bytes of the last unit that were not asked for
}

// unit is the alignment of small allocations; cudaMalloc promises 256.
const unit = 512

const perGroup = 64

func newShared(granularity uint64) *shared {
	units := int(granularity / unit)
	h := &shared{groups: make([]group, (units+perGroup-1)/perGroup), units: units}
	h.each(units, len(h.groups)*perGroup-units, func(g *group, mask uint64) { g.used |= mask }) // not there
	return h
}

func unitsOf(size uint64) int { return int((size + unit - 1) / unit) }

// allocate returns where in the granule there is room for size bytes; false: nowhere.
func (h *shared) allocate(size uint64) (offset uintptr, ok bool) {
	units := unitsOf(size)
	first := h.search(units)
	if first < 0 {
		return 0, false
	}
	h.each(first, units, func(g *group, mask uint64) { g.used |= mask })
	g := &h.groups[first/perGroup]
	g.starts |= 1 << (first % perGroup)
	g.spare[first%perGroup] = uint16(uint64(units)*unit - size)
	h.live++
	h.bytes += size
	return uintptr(first) * unit, true
}

// search returns the lowest unit at which there is room for so many, -1 if there is none.
func (h *shared) search(units int) int {
	for h.from < len(h.groups) && h.groups[h.from].used == ^uint64(0) {
		h.from++
	}
	run := 0 // free units that the groups before end with
	for n := h.from; n < len(h.groups); n++ {
		used := h.groups[n].used
		if run+bits.TrailingZeros64(used) >= units {
			return n*perGroup - run
		}
		if starts := runs(^used, units); starts != 0 {
			return n*perGroup + bits.TrailingZeros64(starts)
		}
		if used == 0 {
			run += perGroup
		} else {
			run = bits.LeadingZeros64(used)
		}
	}
	return -1
}

// runs returns the bits of a word that begin a run of so many ones in it.
func runs(word uint64, length int) uint64 {
	for have := 1; have < length && word != 0; {
		step := min(have, length-have)
		word &= word >> step
		have += step
	}
	return word
}

// remove frees the allocation at a first unit.
func (h *shared) remove(first int) {
	size := h.size(first)
	h.each(first, unitsOf(size), func(g *group, mask uint64) { g.used &^= mask })
	g := &h.groups[first/perGroup]
	g.starts &^= 1 << (first % perGroup)
	g.freeing &^= 1 << (first % perGroup)
	h.from = min(h.from, first/perGroup)
	h.live--
	h.bytes -= size
}

// find returns the first unit of the allocation around an offset, false if there is none.
func (h *shared) find(offset uintptr) (first int, ok bool) {
	u := int(offset / unit)
	n := u / perGroup
	if h.groups[n].used>>(u%perGroup)&1 == 0 {
		return 0, false
	}
	starts := h.groups[n].starts << (perGroup - 1 - u%perGroup) // the unit's own bit is the highest
	for starts == 0 {
		n--
		u = n*perGroup + perGroup - 1
		starts = h.groups[n].starts
	}
	return u - bits.LeadingZeros64(starts), true
}

// size is that of the allocation at a first unit, in bytes as asked for.
func (h *shared) size(first int) uint64 {
	n, bit := first/perGroup, first%perGroup
	g := &h.groups[n]
	spare := uint64(g.spare[bit])
	// Its end is the next unit that is free, or another's first.
	end := (g.starts | ^g.used) >> bit >> 1
	last := first + 1 + bits.TrailingZeros64(end)
	for end == 0 {
		if n++; n == len(h.groups) {
			last = h.units
			break
		}
		end = h.groups[n].starts | ^h.groups[n].used
		last = n*perGroup + bits.TrailingZeros64(end)
	}
	return uint64(last-first)*unit - spare
}

// isFreeing tells whether a free has the allocation at a first unit.
func (h *shared) isFreeing(first int) bool {
	return h.groups[first/perGroup].freeing>>(first%perGroup)&1 != 0
}

func (h *shared) setFreeing(first int, on bool) {
	g := &h.groups[first/perGroup]
	g.freeing &^= 1 << (first % perGroup)
	if on {
		g.freeing |= 1 << (first % perGroup)
	}
}

// each goes through the groups that a range of units lies in; mask is their bits.
func (h *shared) each(first, count int, do func(g *group, mask uint64)) {
	for end := first + count; first < end; {
		bit := first % perGroup
		n := min(perGroup-bit, end-first)
		do(&h.groups[first/perGroup], ^uint64(0)>>(perGroup-n)<<bit)
		first += n
	}
}

// The search for room is bounded: an allocation that finds none in the last few granules begins another
// one, and one that has none for a small part of a granule counts as full until something in it is freed.
const (
	smallTries = 4
	fullBelow  = 16
)

// mallocSmall serves a request from a granule of its tag that has room. The caller holds e.mu.
func (t *tag) mallocSmall(p policy, size uint64) (uintptr, bool) {
	list := t.small[p]
	for i := len(list) - 1; i >= 0 && i >= len(list)-smallTries; i-- {
		s := list[i]
		if s.busy || s.state != active {
			continue
		}
		if offset, ok := s.shared.allocate(size); ok {
			return s.address + offset, true
		}
		if size <= s.length()/fullBelow {
			s.shared.listed = false
			list = append(list[:i], list[i+1:]...)
			t.small[p] = list
		}
	}
	return 0, false
}

// listSmall notes that a granule has room.
func (t *tag) listSmall(s *segment) {
	if !s.shared.listed {
		s.shared.listed = true
		t.small[s.policy] = append(t.small[s.policy], s)
	}
}

// unlistSmall forgets a granule that goes.
func (t *tag) unlistSmall(s *segment) {
	if !s.shared.listed {
		return
	}
	s.shared.listed = false
	list := t.small[s.policy]
	for i := range list {
		if list[i] == s {
			t.small[s.policy] = append(list[:i], list[i+1:]...)
			return
		}
	}
}
