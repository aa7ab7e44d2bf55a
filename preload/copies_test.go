package main

import "testing"

// A copy that leaves it to the driver whether an address is the device's would fault where the program has paused the
// memory.
func TestCopiesOfPausedMemory(t *testing.T) {
	for _, cudart := range eachMajor() {
		program := compileWithDriver(t, "paused_copies", cudart)
		each(t, program, alone("refused", "passed"))
		each(t, program, alone("refused", "passed", "held"), reaching(t))
	}
}
