package main

import "testing"

// Captures by the names of both APIs, in the order of events that a library behind libtms.so causes.
func TestCaptures(t *testing.T) {
	for _, cudart := range eachMajor() {
		program := compile(t, "captures", cudart, "-Wl,--no-as-needed", "-l:libcuda.so.1") // slowbegin looks there
		each(t, program, alone("cuda", "cu"), "CUDASIM_DEVICES=2",
			"LD_PRELOAD="+built(t, "lib", "libtms.so")+":"+shared(t, "slowbegin"))
	}
}
