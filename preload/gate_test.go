package main

import (
	"testing"
)

func TestGate(t *testing.T) {
	for _, cudart := range majors {
		program := compileWithDriver(t, "gate", cudart)
		t.Run("basic "+cudart, func(t *testing.T) { run(t, program, []string{"basic"}, reaching(t)).succeeded(t) })
	}
}
