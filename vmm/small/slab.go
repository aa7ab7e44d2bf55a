package small

import (
	"fmt"
	"math/bits"
)

// Slab is a granule's records of the small allocations in it. They are flat and dense: a million allocations
// cost the garbage collector nothing, and one costs two cache lines. An allocation is known by where it begins,
// in bytes from the start of the granule.
type Slab struct {
	Live  int    // allocations
	Bytes uint64 // that they asked for

	groups []group
	units  int
	from   int // the groups before this one are full
	most   int // no run of free units is longer
}

// group is 64 units, a bit each, the lowest first.
type group struct {
	used    uint64
	starts  uint64           // first units of allocations
	freeing uint64           // of those, the units that are marked as being freed
	spare   [perGroup]uint16 // by first units: bytes of the last unit that were not asked for
}

// Unit is the alignment of small allocations; cudaMalloc promises 256.
const Unit = 512

const unit = Unit

const perGroup = 64

// New returns an empty slab of granularity bytes.
func New(granularity uint64) *Slab {
	units := int(granularity / unit)
	s := &Slab{groups: make([]group, (units+perGroup-1)/perGroup), units: units, most: units}
	s.each(units, len(s.groups)*perGroup-units, func(g *group, mask uint64) { g.used |= mask }) // not there
	return s
}

func unitsOf(size uint64) int { return int((size + unit - 1) / unit) }

// Allocate takes the lowest room for size bytes, returns its offset, and reports whether there was room.
func (s *Slab) Allocate(size uint64) (offset uintptr, ok bool) {
	units := unitsOf(size)
	if units > s.most {
		return 0, false
	}
	first := s.search(units)
	if first < 0 {
		s.most = units - 1
		return 0, false
	}
	s.each(first, units, func(g *group, mask uint64) { g.used |= mask })
	g := &s.groups[first/perGroup]
	g.starts |= 1 << (first % perGroup)
	g.spare[first%perGroup] = uint16(uint64(units)*unit - size)
	s.Live++
	s.Bytes += size
	return uintptr(first) * unit, true
}

// search returns the lowest unit at which that number of units is free, or -1 if there is none.
func (s *Slab) search(units int) int {
	for s.from < len(s.groups) && s.groups[s.from].used == ^uint64(0) {
		s.from++
	}
	run := 0 // free units that the groups before end with
	for n := s.from; n < len(s.groups); n++ {
		used := s.groups[n].used
		if run+bits.TrailingZeros64(used) >= units {
			return n*perGroup - run
		}
		if starts := begins(^used, units); starts != 0 {
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

// begins returns the bits at which runs of that many set bits begin in a word.
func begins(word uint64, length int) uint64 {
	for have := 1; have < length && word != 0; {
		step := min(have, length-have)
		word &= word >> step
		have += step
	}
	return word
}

// Free ends the allocation at an offset.
func (s *Slab) Free(offset uintptr) {
	first := int(offset / unit)
	size := s.size(first)
	s.each(first, unitsOf(size), func(g *group, mask uint64) { g.used &^= mask })
	g := &s.groups[first/perGroup]
	g.starts &^= 1 << (first % perGroup)
	g.freeing &^= 1 << (first % perGroup)
	s.from = min(s.from, first/perGroup)
	s.Live--
	s.Bytes -= size
	s.most = max(s.most, s.run(first))
}

// Most returns a number of bytes; an allocation of more finds no room, and one of fewer most likely does.
func (s *Slab) Most() uint64 { return uint64(s.most) * unit }

// run returns how many free units there are around one of them.
func (s *Slab) run(at int) (units int) {
	for n, word := at/perGroup, s.groups[at/perGroup].used>>(at%perGroup); ; word = s.groups[n].used {
		left := perGroup
		if n == at/perGroup {
			left -= at % perGroup
		}
		free := min(bits.TrailingZeros64(word), left)
		units += free
		if n++; free < left || n == len(s.groups) {
			break
		}
	}
	for n, word := at/perGroup, s.groups[at/perGroup].used<<(perGroup-1-at%perGroup)<<1; ; word = s.groups[n].used {
		left := perGroup
		if n == at/perGroup {
			left = at % perGroup
		}
		free := min(bits.LeadingZeros64(word), left)
		units += free
		if n--; free < left || n < 0 {
			break
		}
	}
	return units
}

// Reuse makes the allocation at an offset, which is marked as being freed, live again for size bytes. Round of that
// size is the same.
func (s *Slab) Reuse(offset uintptr, size uint64) {
	first := int(offset / unit)
	g := &s.groups[first/perGroup]
	s.Bytes += size - s.size(first)
	g.spare[first%perGroup] = uint16(uint64(unitsOf(size))*unit - size)
	g.freeing &^= 1 << (first % perGroup)
}

// Round returns how many bytes an allocation of that size takes of a slab.
func Round(size uint64) uint64 { return uint64(unitsOf(size)) * unit }

// Each calls f with each allocation that is not marked as being freed.
func (s *Slab) Each(f func(offset uintptr, size uint64)) {
	for n := range s.groups {
		for starts := s.groups[n].starts &^ s.groups[n].freeing; starts != 0; starts &= starts - 1 {
			first := n*perGroup + bits.TrailingZeros64(starts)
			f(uintptr(first)*unit, s.size(first))
		}
	}
}

// Find returns where the allocation around an offset begins, and reports whether there is one.
func (s *Slab) Find(offset uintptr) (begin uintptr, ok bool) {
	u := int(offset / unit)
	n := u / perGroup
	if s.groups[n].used>>(u%perGroup)&1 == 0 {
		return 0, false
	}
	starts := s.groups[n].starts << (perGroup - 1 - u%perGroup) // the unit's own bit is the highest
	for starts == 0 {
		n--
		u = n*perGroup + perGroup - 1
		starts = s.groups[n].starts
	}
	return uintptr(u-bits.LeadingZeros64(starts)) * unit, true
}

// Size returns the size of the allocation at an offset, in bytes as asked for.
func (s *Slab) Size(offset uintptr) uint64 { return s.size(int(offset / unit)) }

func (s *Slab) size(first int) uint64 {
	n, bit := first/perGroup, first%perGroup
	g := &s.groups[n]
	spare := uint64(g.spare[bit])
	// Its end is the next unit that is free, or the first unit of another allocation.
	end := (g.starts | ^g.used) >> bit >> 1
	last := first + 1 + bits.TrailingZeros64(end)
	for end == 0 {
		if n++; n == len(s.groups) {
			last = s.units
			break
		}
		end = s.groups[n].starts | ^s.groups[n].used
		last = n*perGroup + bits.TrailingZeros64(end)
	}
	return uint64(last-first)*unit - spare
}

// Freeing reports whether the allocation at an offset is marked as being freed.
func (s *Slab) Freeing(offset uintptr) bool {
	first := int(offset / unit)
	return s.groups[first/perGroup].freeing>>(first%perGroup)&1 != 0
}

// SetFreeing marks the allocation at an offset as being freed, or removes the mark.
func (s *Slab) SetFreeing(offset uintptr, on bool) {
	first := int(offset / unit)
	g := &s.groups[first/perGroup]
	g.freeing &^= 1 << (first % perGroup)
	if on {
		g.freeing |= 1 << (first % perGroup)
	}
}

// each goes through the groups that a range of units lies in; mask is their bits.
func (s *Slab) each(first, count int, do func(g *group, mask uint64)) {
	for end := first + count; first < end; {
		bit := first % perGroup
		n := min(perGroup-bit, end-first)
		do(&s.groups[first/perGroup], ^uint64(0)>>(perGroup-n)<<bit)
		first += n
	}
}

// Check looks for a contradiction in the records.
func (s *Slab) Check() error {
	live, bytes, end, run := 0, uint64(0), 0, 0
	for u := range s.units {
		g, bit := &s.groups[u/perGroup], uint64(1)<<(u%perGroup)
		if g.starts&bit != 0 {
			size := s.size(u)
			live, bytes, end = live+1, bytes+size, u+unitsOf(size)
		} else if g.freeing&bit != 0 {
			return fmt.Errorf("no small allocation at unit %d to be freed", u)
		}
		switch used := g.used&bit != 0; {
		case used != (u < end):
			return fmt.Errorf("unit %d is in use: %v", u, used)
		case !used && u/perGroup < s.from:
			return fmt.Errorf("unit %d is free, where all is full", u)
		}
		if run++; g.used&bit != 0 {
			run = 0
		}
		if run > s.most {
			return fmt.Errorf("%d free units end at %d, and no run is said to have more than %d", run, u, s.most)
		}
	}
	if live != s.Live || bytes != s.Bytes {
		return fmt.Errorf("%d small allocations of %d bytes, noted are %d of %d", live, bytes, s.Live, s.Bytes)
	}
	return nil
}
