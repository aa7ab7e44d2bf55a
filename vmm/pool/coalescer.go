package pool

// Coalescer is what a Source may also be: one whose segments, where one begins at the end of another, serve
// a block that lies across both, and yet are given back one by one. (SubAllocator::SupportsCoalescing)
type Coalescer interface {
	// Coalesces reports whether that is so of two segments that touch.
	Coalesces(below, above uintptr) bool
}
