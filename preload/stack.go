package main

// faultRoom is what a fault takes of a goroutine's stack before it lands on one that is made for it
// (handlers.c), and what leads to it. Stacks do not shrink (enter.c).
const faultRoom = 24 << 10 // bytes

// growStack makes that room: a function that has a frame of this size is entered.
//
//go:noinline
func growStack(use bool) byte {
	if use { // never: only the size counts
		var frame [faultRoom]byte
		fill(&frame)
		return frame[0]
	}
	return 0
}

//go:noinline
func fill(frame *[faultRoom]byte) { clear(frame[:]) }
