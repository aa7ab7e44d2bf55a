package main

import "testing"

// What the library waits for, and what it holds meanwhile.

func TestSlackStays(t *testing.T) {
	each(t, compileWithDriver(t, "slack", majors[0]), alone("runtime", "driver"))
}

func TestContextsAreWaitedFor(t *testing.T) {
	program := compileWithDriver(t, "contexts", majors[0])
	each(t, program, alone("free", "pause", "asked for by name", "unseen", "destroyed", "lost", "reaches", "peer"),
		"CUDASIM_DEVICES=2")
	each(t, program, alone("staged", "made there"), "CUDASIM_DEVICES=2", "CUDASIM_PEERS=0")
}

func TestGatedStreams(t *testing.T) {
	program := compile(t, "waiting", majors[1])
	each(t, program, alone("allocation", "other stream", "pause", "captured"), "CUDASIM_DEVICES=2")
}
