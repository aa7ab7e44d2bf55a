package pool

// Room has the addresses of one pool, whose segments lie side by side there.
type Room struct {
	Bytes uint64 // the most that the segments may have
}

// Coalescer is a Source in which one block can lie across two segments that touch; the segments are still given back
// one by one. (SubAllocator::SupportsCoalescing)
type Coalescer interface {
	// Reserve places later segments in a room, as far as its addresses last, and reports whether the source's segments
	// can coalesce at all.
	Reserve(room *Room) bool
	// Coalesces reports whether two segments that touch can.
	Coalesces(below, above uintptr) bool
}
