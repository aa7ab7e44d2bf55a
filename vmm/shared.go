package vmm

// shared is what a segment of one granule knows of the small allocations that it consists of.
type shared struct {
	space  *space // in units
	blocks []*block
	live   int
	bytes  uint64 // as asked for
	listed bool   // in its tag's list of those with room
}

// block is one small allocation.
type block struct {
	span    *span // in shared.space
	size    uint64
	freeing bool // a free has it, or has deferred it
}

// unit is the alignment of small allocations; cudaMalloc promises 256.
const unit = 512

func newShared(granularity uint64) *shared {
	return &shared{space: newSpace(uint32(granularity / unit)), blocks: make([]*block, granularity/unit)}
}

// allocate returns where in the granule there is room for size bytes; false: nowhere.
func (h *shared) allocate(size uint64) (offset uintptr, ok bool) {
	span := h.space.allocate(uint32((size + unit - 1) / unit))
	if span == nil {
		return 0, false
	}
	h.enter(span, &block{span: span, size: size})
	h.live++
	h.bytes += size
	return uintptr(span.start) * unit, true
}

func (h *shared) enter(s *span, owner *block) {
	for u := s.start; u < s.start+s.count; u++ {
		h.blocks[u] = owner
	}
}

func (h *shared) remove(b *block) {
	h.enter(b.span, nil)
	h.space.release(b.span)
	h.live--
	h.bytes -= b.size
}

// find returns the allocation around an offset, nil if there is none.
func (h *shared) find(offset uintptr) *block { return h.blocks[offset/unit] }

func (b *block) offset() uintptr { return uintptr(b.span.start) * unit }

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
