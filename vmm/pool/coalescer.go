package pool

// Room is the addresses of one pool: its segments lie side by side there.
type Room struct {
	Bytes uint64 // of the segments, at most
}

// Coalescer is what a Source may also be: one whose segments, where one begins at the end of another, serve
// a block that lies across both, and yet are given back one by one. (SubAllocator::SupportsCoalescing)
type Coalescer interface {
	// Reserve has the segments allocated from here on lie in a room, as far as addresses last, and reports whether
	// there can be such segments at all.
	Reserve(room *Room) bool
	// Coalesces reports whether two segments that touch are such.
	Coalesces(below, above uintptr) bool
}
