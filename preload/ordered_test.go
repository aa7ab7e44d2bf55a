package main

import "testing"

func TestStreamOrderedMemory(t *testing.T) {
	program := compile(t, "ordered", majors[1])
	environment := []string{"CUDASIM_DEVICES=2", "CUDASIM_MEMORY=1G"}
	each(t, program, alone("ahead", "steps", "repeats", "turns", "child", "pools", "current", "attributes", "device"),
		environment...)
	// The runtime's calls to the driver come back to the library.
	t.Run("reaching", func(t *testing.T) {
		each(t, program, alone("pools", "attributes"), append(environment, reaching(t))...)
	})
}
