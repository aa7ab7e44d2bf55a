package main

import "testing"

// Captures by the names of both APIs, in the order of events that a library behind ours causes.
func TestCaptures(t *testing.T) {
	behind := shared(t, "slowbegin")
	for _, cudart := range eachMajor() {
		program := compile(t, "captures", cudart)
		for _, api := range []string{"cuda", "cu"} {
			t.Run(api+" "+cudart, func(t *testing.T) {
				run(t, program, []string{api}, "LD_PRELOAD="+built(t, "lib", "libtms.so")+":"+behind,
					"CUDASIM_DEVICES=2").succeeded(t)
			})
		}
	}
}
