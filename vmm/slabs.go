package vmm

import (
	"math/bits"

	"tms/vmm/small"
)

// slabs are the slabs of a tag and policy that may have room, by the logarithm of their longest run of free units as far
// as that is known: so an allocation finds one that has room for it, though many have less.
type slabs [32][]*segment

// smallTries bounds the search among slabs that may have too little room: an allocation that finds none in the last few
// looks at those that have more, and then begins another slab.
const smallTries = 4

// shelfOf returns where slabs with runs of so many bytes are; 0 bytes: nowhere.
func shelfOf(bytes uint64) int { return bits.Len64(bytes/small.Unit) - 1 }

// mallocSmall serves a request from a slab of its tag that has room. The caller holds e.mu.
func (t *tag) mallocSmall(p policy, size uint64) (uintptr, bool) {
	of := t.slabs[p]
	if of == nil {
		return 0, false
	}
	for shelf := max(0, shelfOf(size+small.Unit-1)); shelf < len(of); shelf++ {
		for tries, i := 0, len(of[shelf])-1; i >= 0 && tries < smallTries; tries, i = tries+1, i-1 {
			s := of[shelf][i]
			if s.owner != nobody || s.state != active {
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

// listSlab notes how much room a slab has.
func (t *tag) listSlab(s *segment) {
	shelf := shelfOf(s.slab.Most())
	if s.listed && s.shelf == shelf {
		return
	}
	t.unlistSlab(s)
	if shelf < 0 {
		return
	}
	of := t.slabs[s.policy]
	if of == nil {
		of = new(slabs)
		t.slabs[s.policy] = of
	}
	s.listed, s.shelf, s.place = true, shelf, len(of[shelf])
	of[shelf] = append(of[shelf], s)
}

// unlistSlab drops a slab from its list: it is about to go, or is full.
func (t *tag) unlistSlab(s *segment) {
	if !s.listed {
		return
	}
	list := t.slabs[s.policy][s.shelf]
	last := len(list) - 1
	list[s.place], list[last].place = list[last], s.place
	list[last] = nil
	t.slabs[s.policy][s.shelf] = list[:last]
	s.listed = false
}
