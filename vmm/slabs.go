package vmm

import (
	"math/bits"

	"tms/vmm/small"
)

// slabKind is what an allocation asks of a slab.
type slabKind struct {
	policy
	paused bool
}

// slabs are the slabs of a tag and kind that may have room, by the logarithm of their longest run of free units as far
// as that is known: so an allocation finds one that has room for it, though many have less.
type slabs [32][]*segment

// smallTries bounds the search among slabs that may have too little room: an allocation that finds none in the last few
// looks at those that have more, and then begins another slab.
const smallTries = 4

// shelfOf returns the shelf of slabs whose longest free run has that size, or -1 for 0 bytes.
func shelfOf(bytes uint64) int { return bits.Len64(bytes/small.Unit) - 1 }

// mallocSmall serves a request from a slab of its tag that has room. The caller holds e.mu.
func (t *tag) mallocSmall(p policy, size uint64) (uintptr, bool) {
	of := t.slabs[slabKind{policy: p}]
	if of == nil {
		return 0, false
	}
	for shelf := max(0, shelfOf(size+small.Unit-1)); shelf < len(of); shelf++ {
		for tries, i := 0, len(of[shelf])-1; i >= 0 && tries < smallTries; tries, i = tries+1, i-1 {
			s := of[shelf][i]
			if s.owner != nobody {
				continue
			}
			if offset, ok := s.slab.Allocate(size); ok {
				return s.address + offset, true
			}
			t.listSlab(s) // it has less than was known
		}
	}
	return 0, false
}

// pausedSlab returns a paused slab that most likely has room for an allocation, and no memory, or nil if there is none.
func (t *tag) pausedSlab(p policy, size uint64) *segment {
	of := t.slabs[slabKind{p, true}]
	if of == nil {
		return nil
	}
	for _, list := range of[max(0, shelfOf(size+small.Unit-1)):] {
		for i := len(list) - 1; i >= max(0, len(list)-smallTries); i-- {
			if s := list[i]; s.owner == nobody && s.extent == nil && !s.gated && s.slab.Most() >= size {
				return s
			}
		}
	}
	return nil
}

// listSlab notes how much room a slab has, and whether it is paused.
func (t *tag) listSlab(s *segment) {
	kind, shelf := slabKind{s.policy, s.state == paused}, shelfOf(s.slab.Most())
	if s.among != nil && s.among == t.slabs[kind] && s.shelf == shelf {
		return
	}
	t.unlistSlab(s)
	if shelf < 0 {
		return
	}
	of := t.slabs[kind]
	if of == nil {
		of = new(slabs)
		t.slabs[kind] = of
	}
	s.among, s.shelf, s.place = of, shelf, len(of[shelf])
	of[shelf] = append(of[shelf], s)
}

// unlistSlab drops a slab from its list: it is about to go, or is full.
func (t *tag) unlistSlab(s *segment) {
	if s.among == nil {
		return
	}
	list := s.among[s.shelf]
	last := len(list) - 1
	list[s.place], list[last].place = list[last], s.place
	list[last] = nil
	s.among[s.shelf] = list[:last]
	s.among = nil
}
