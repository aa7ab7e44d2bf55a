package space

// arena is one large address reservation of a device. Spans lie inside it, so two comparisons show whether a pointer is
// the engine's, and a span needs no reservation of its own. The engine never frees it: other memory could get its
// addresses, and a thread that is looking up an address would take it for the engine's.
type arena[T any] struct {
	base        uintptr
	size        uint64
	granularity uint64
	ordinal     int        // of the device
	ranges      *fit       // addresses, free and in use
	leaves      []*leaf[T] // the owner of each granule
}

const leafGranules = 4096

type leaf[T any] [leafGranules]*T

func newArena[T any](base uintptr, size uint64, d Device) *arena[T] {
	granules := uint32(size / d.Granularity)
	return &arena[T]{
		base:        base,
		size:        size,
		granularity: d.Granularity,
		ordinal:     d.Ordinal,
		ranges:      newFit(granules),
		leaves:      make([]*leaf[T], (granules+leafGranules-1)/leafGranules),
	}
}

func (a *arena[T]) contains(address uintptr) bool {
	return uint64(address-a.base) < a.size
}

// owner returns the owner of an address in the arena, nil if there is none.
func (a *arena[T]) owner(address uintptr) *T {
	granule := uint64(address-a.base) / a.granularity
	l := a.leaves[granule/leafGranules]
	if l == nil {
		return nil
	}
	return l[granule%leafGranules]
}

// enter records that count granules from the first on have an owner, or with nil that they have none.
func (a *arena[T]) enter(first, count uint32, owner *T) {
	for g := first; g < first+count; g++ {
		l := &a.leaves[g/leafGranules]
		if *l == nil {
			*l = new(leaf[T])
		}
		(*l)[g%leafGranules] = owner
	}
}
