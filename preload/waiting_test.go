package main

import "testing"

// What the library waits for, and what it holds meanwhile.

func TestSlackStays(t *testing.T) {
	program := compileWithDriver(t, "slack", majors[0])
	for _, by := range []string{"runtime", "driver"} {
		run(t, program, []string{by}).succeeded(t)
	}
}

func TestContextsAreWaitedFor(t *testing.T) {
	program := compileWithDriver(t, "contexts", majors[0])
	for _, what := range []string{"free", "pause", "asked for by name", "unseen", "destroyed", "lost", "reaches", "peer"} {
		t.Run(what, func(t *testing.T) {
			run(t, program, []string{what}, "CUDASIM_DEVICES=2").succeeded(t)
		})
	}
	for _, what := range []string{"staged", "made there"} {
		t.Run(what, func(t *testing.T) {
			run(t, program, []string{what}, "CUDASIM_DEVICES=2", "CUDASIM_PEERS=0").succeeded(t)
		})
	}
}

func TestGatedStreams(t *testing.T) {
	program := compile(t, "gated", majors[1])
	for _, what := range []string{"malloc", "other", "pause", "captured"} {
		t.Run(what, func(t *testing.T) {
			run(t, program, []string{what}, "CUDASIM_DEVICES=2").succeeded(t)
		})
	}
}

func TestCallbacks(t *testing.T) {
	program := compile(t, "callbacks", majors[1])
	for _, what := range []string{"device", "malloc", "inside", "thread"} {
		t.Run(what, func(t *testing.T) {
			run(t, program, []string{what}, "CUDASIM_DEVICES=2").succeeded(t)
		})
	}
}

func TestPreparing(t *testing.T) {
	run(t, compile(t, "preparing", majors[1]), nil).succeeded(t)
}
