package main

import (
	"testing"

	"tms/internal/aid/hermetic"
)

// Pauses from outside at any moment of sequences of calls that no framework of the tests makes.
func TestUnusualSequences(t *testing.T) {
	pauses := "100"
	if hermetic.Quick {
		pauses = "10"
	}
	program := compileWithDriver(t, "unusual", majors[1])
	for _, sequence := range []string{"retains", "asks", "copies", "captures", "pools"} {
		each(t, program, [][]string{{sequence, pauses}}, reaching(t), "TMS_SHAREABLE=ipc")
	}
}
