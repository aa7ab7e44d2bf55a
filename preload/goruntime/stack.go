package goruntime

// faultRoom is what a fault takes of a goroutine's stack before it lands on one that is made for it
// (handlers.c), and what leads to it. Stacks do not shrink (enter.c).
const faultRoom = 24 << 10 // bytes

// GrowStack makes that room on the calling goroutine's stack.
func GrowStack() { grow(false) }

// grow has a frame of that size.
//
//go:noinline
func grow(use bool) byte {
	if use { // never: only the size counts
		var frame [faultRoom]byte
		fill(&frame)
		return frame[0]
	}
	return 0
}

//go:noinline
func fill(frame *[faultRoom]byte) { clear(frame[:]) }
