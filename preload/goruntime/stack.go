package goruntime

// faultRoom is the room that a fault, and the calls that lead to it, take on a goroutine's stack before the fault lands
// on the stack for faults (handlers.c). Stacks do not shrink (enter.c).
const faultRoom = 24 << 10 // bytes

// grow(false) makes that room on the calling goroutine's stack: it has a frame of that size.
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
