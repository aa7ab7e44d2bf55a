package vmm

// arena is one large address reservation of a device. Segments are placed inside it, so that
// whether a pointer is ours is two comparisons, and reserving costs nothing per segment.
type arena struct {
	base        uintptr
	size        uint64
	granularity uint64
	ordinal     int // of the device
	space       *space
	leaves      []*leaf // which segment a granule belongs to
}

const leafGranules = 4096

type leaf [leafGranules]*segment

// arenaSize is what is reserved at a time. Reserving costs microseconds whatever the size; it is
// generous because paused segments keep their addresses, so addresses outnumber memory.
const arenaSize = 4 << 40

func newArena(base uintptr, size, granularity uint64, ordinal int) *arena {
	granules := uint32(size / granularity)
	return &arena{
		base:        base,
		size:        size,
		granularity: granularity,
		ordinal:     ordinal,
		space:       newSpace(granules),
		leaves:      make([]*leaf, (granules+leafGranules-1)/leafGranules),
	}
}

func (a *arena) contains(address uintptr) bool {
	return uint64(address-a.base) < a.size
}

func (a *arena) address(s *span) uintptr {
	return a.base + uintptr(uint64(s.start)*a.granularity)
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
func (a *arena) enter(s *span, owner *segment) {
	for g := s.start; g < s.start+s.count; g++ {
		l := &a.leaves[g/leafGranules]
		if *l == nil {
			*l = new(leaf)
		}
		(*l)[g%leafGranules] = owner
	}
}
