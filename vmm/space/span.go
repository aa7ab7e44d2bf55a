package space

// Span is granules of a tag. It is a value, to be copied; the zero Span is none.
type Span[T any] struct {
	in    *addressRange[T]
	block *block // in in.blocks
}

// Granules returns the number of granules in the span.
func (s Span[T]) Granules() uint32 { return s.block.count }

// Bytes returns the size of the span.
func (s Span[T]) Bytes() uint64 { return uint64(s.block.count) * s.in.arena.granularity }

// Address returns where the span begins.
func (s Span[T]) Address() uintptr {
	return s.in.arena.base + uintptr(uint64(s.first())*s.in.arena.granularity)
}

// first returns the first granule of the span, counted in the arena.
func (s Span[T]) first() uint32 { return s.in.block.start + s.block.start }

// Enter records the span's owner, which Find then returns, or with nil that it has none.
func (s Span[T]) Enter(owner *T) { s.in.arena.enter(s.first(), s.block.count, owner) }

// Room returns the room that the span lies in, or nil.
func (s Span[T]) Room() *Room { return s.in.room }

// SameRange reports whether two spans lie in one range: only those can be joined.
func (s Span[T]) SameRange(other Span[T]) bool { return s.in == other.in }

// Split shortens the span to granules, and returns the rest.
func (s Span[T]) Split(granules uint32) (rest Span[T]) {
	return Span[T]{s.in, s.in.blocks.split(s.block, granules)}
}

// Join adds the span behind this one, and ends that span.
func (s Span[T]) Join(next Span[T]) { s.in.blocks.join(s.block, next.block) }

// Release gives the granules back. No owner may be entered for them.
func (s Span[T]) Release() {
	r := s.in
	r.used -= s.block.count
	r.blocks.release(s.block)
	if r.used == 0 {
		r.of.drop(r)
	}
}
