package space

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A tag's first range has room for an extent, and each later one for as much as the tag has: so there are few ranges
// however much it allocates, and few addresses where it allocates little. A tag of small allocations begins with the
// granule that they share.
const (
	firstRange   = 80 << 20
	largestRange = 16 << 30
)

// Room keeps the spans of one pool apart from the others of its tag, in a range that is large enough for all of them,
// side by side.
type Room struct {
	Bytes uint64 // of the spans in it, at most
}

// Ranges is the address ranges of one tag on one device.
type Ranges[T any] struct {
	space    *Space[T]
	device   Device
	of       map[*Room][]*addressRange[T] // by room; with nil those for all
	granules uint32                       // of these
}

// addressRange is a part of an arena in which one tag has its spans.
type addressRange[T any] struct {
	arena  *arena[T]
	of     *Ranges[T] // nil: given back
	room   *Room      // nil: it is for all
	block  *block     // in arena.ranges
	blocks *fit
	used   uint32 // granules
}

// NewRanges returns the ranges of a tag that has none.
func (s *Space[T]) NewRanges(d Device) *Ranges[T] {
	return &Ranges[T]{space: s, device: d, of: map[*Room][]*addressRange[T]{}}
}

// Empty reports whether the tag has no span.
func (r *Ranges[T]) Empty() bool { return len(r.of) == 0 }

// Holds reports whether a span is one of the tag's.
func (r *Ranges[T]) Holds(s Span[T]) bool { return s.in.of == r }

// Allocate finds granules, in the room unless that is nil. With small, it is a single granule that small allocations
// are to share. Errors: the driver's, when no addresses are left.
func (r *Ranges[T]) Allocate(granules uint32, small bool, room *Room) (Span[T], error) {
	for _, in := range r.of[room] {
		if b := in.allocate(granules); b != nil {
			return Span[T]{in, b}, nil
		}
	}
	arena, block, err := r.space.take(r.device, granules, max(granules, r.next(small, room)))
	if err != nil {
		return Span[T]{}, err
	}
	in := &addressRange[T]{arena: arena, of: r, room: room, block: block, blocks: newFit(block.count)}
	r.of[room] = append(r.of[room], in)
	r.count(in, block.count)
	return Span[T]{in, in.allocate(granules)}, nil
}

func (r *Ranges[T]) count(in *addressRange[T], granules uint32) {
	if in.room == nil {
		r.granules += granules
	}
}

func (in *addressRange[T]) allocate(granules uint32) *block {
	b := in.blocks.allocate(granules)
	if b != nil {
		in.used += granules
	}
	return b
}

// next returns how many granules the next range gets.
func (r *Ranges[T]) next(small bool, room *Room) uint32 {
	if room != nil {
		return uint32((min(room.Bytes, r.device.Total) + r.device.Granularity - 1) / r.device.Granularity)
	}
	if small && r.granules == 0 {
		return 1
	}
	return uint32(min(max(uint64(r.granules), firstRange/r.device.Granularity), largestRange/r.device.Granularity))
}

// drop gives back a range that no longer has a span.
func (r *Ranges[T]) drop(in *addressRange[T]) {
	r.count(in, -in.block.count)
	in.arena.ranges.release(in.block)
	in.of = nil
	list := r.of[in.room]
	at := slices.Index(list, in)
	if list = slices.Delete(list, at, at+1); len(list) == 0 {
		delete(r.of, in.room)
	} else {
		r.of[in.room] = list
	}
}

// Check looks for a contradiction in the records; owned reports whether a span has an owner.
func (r *Ranges[T]) Check(owned func(Span[T]) bool) error {
	granules := uint32(0)
	for _, in := range slices.Concat(slices.Collect(maps.Values(r.of))...) {
		if in.of != r || in.used == 0 {
			return errors.New("a range of another tag, or of nothing")
		}
		if err := in.blocks.check(in.block.count, in.used,
			func(b *block) bool { return owned(Span[T]{in, b}) }); err != nil {
			return fmt.Errorf("range at %#x: %w", Span[T]{in, in.blocks.head}.Address(), err)
		}
		if in.room == nil {
			granules += in.block.count
		}
	}
	if granules != r.granules {
		return fmt.Errorf("ranges of %d granules, noted are %d", granules, r.granules)
	}
	return nil
}
