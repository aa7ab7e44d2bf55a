package vmm

import "slices"

// The search for room is bounded: an allocation that finds none in the last few slabs begins another slab. A slab
// without room for a small part of a granule counts as full until something in it is freed.
const (
	smallTries = 4
	fullBelow  = 16
)

// mallocSmall serves a request from a slab of its tag that has room. The caller holds e.mu.
func (t *tag) mallocSmall(p policy, size uint64) (uintptr, bool) {
	list := t.slabs[p]
	for i := len(list) - 1; i >= 0 && i >= len(list)-smallTries; i-- {
		s := list[i]
		if s.owner != nobody || s.state != active {
			continue
		}
		if offset, ok := s.slab.Allocate(size); ok {
			return s.address + offset, true
		}
		if size <= s.length()/fullBelow {
			s.listed = false
			list = append(list[:i], list[i+1:]...)
			t.slabs[p] = list
		}
	}
	return 0, false
}

// listSlab notes that a slab has room.
func (t *tag) listSlab(s *segment) {
	if !s.listed {
		s.listed = true
		t.slabs[s.policy] = append(t.slabs[s.policy], s)
	}
}

// unlistSlab drops a slab from its list: the slab is about to go.
func (t *tag) unlistSlab(s *segment) {
	if !s.listed {
		return
	}
	s.listed = false
	t.slabs[s.policy] = slices.DeleteFunc(t.slabs[s.policy], func(other *segment) bool { return other == s })
}
