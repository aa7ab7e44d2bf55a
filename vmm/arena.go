package vmm

// arena is one large address reservation of a device. Segments are placed inside it, so that
// whether a pointer is ours is two comparisons, and reserving costs nothing per segment. It is kept for good:
// freed, its addresses could become somebody else's, and a thread that is looking at it would take them for ours.
type arena struct {
	base        uintptr
	size        uint64
	granularity uint64
	ordinal     int     // of the device
	ranges      *space  // what is whose range
	leaves      []*leaf // which segment a granule belongs to
}

// addressRange is a part of an arena in which one tag places its segments: what is allocated one after
// the other is then side by side, and can share extents.
type addressRange struct {
	arena *arena
	span  *span // in arena.ranges
	space *space
	used  uint32 // granules
}

const leafGranules = 4096

type leaf [leafGranules]*segment

func newArena(base uintptr, size, granularity uint64, ordinal int) *arena {
	granules := uint32(size / granularity)
	return &arena{
		base:        base,
		size:        size,
		granularity: granularity,
		ordinal:     ordinal,
		ranges:      newSpace(granules),
		leaves:      make([]*leaf, (granules+leafGranules-1)/leafGranules),
	}
}

// newRange takes a range of so many granules; nil when there is no room.
func (a *arena) newRange(granules uint32) *addressRange {
	s := a.ranges.allocate(granules)
	if s == nil {
		return nil
	}
	return &addressRange{arena: a, span: s, space: newSpace(granules)}
}

// allocate takes granules for a segment; nil when there is no room.
func (r *addressRange) allocate(granules uint32) *span {
	s := r.space.allocate(granules)
	if s != nil {
		r.used += granules
	}
	return s
}

func (a *arena) contains(address uintptr) bool {
	return uint64(address-a.base) < a.size
}

// granule is the first granule of a span of the range, counted in the arena.
func (r *addressRange) granule(s *span) uint32 { return r.span.start + s.start }

func (r *addressRange) address(s *span) uintptr {
	return r.arena.base + uintptr(uint64(r.granule(s))*r.arena.granularity)
}

// find returns the segment that an address lies in, nil if none.
func (a *arena) find(address uintptr) *segment {
	granule := uint64(address-a.base) / a.granularity
	l := a.leaves[granule/leafGranules]
	if l == nil {
		return nil
	}
	return l[granule%leafGranules]
}

// enter records that the granules of a span belong to a segment, or with nil that they are free.
func (r *addressRange) enter(s *span, owner *segment) {
	first := r.granule(s)
	for g := first; g < first+s.count; g++ {
		l := &r.arena.leaves[g/leafGranules]
		if *l == nil {
			*l = new(leaf)
		}
		(*l)[g%leafGranules] = owner
	}
}
