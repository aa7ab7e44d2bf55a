package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A thread that waits for each step goes on, and nothing reads memory whose contents are not back.
func TestResumeWithAnOrder(t *testing.T) {
	program := compileWithDriver(t, "order", majors[1])
	each(t, program, alone("steps", "leaving", "failing", "failing and freed", "others", "freed", "forked", "reset",
		"exits", "arguments"), reaching(t), "TMS_DEBUG=invariants")
	each(t, program, [][]string{{"storage", buildRDMA(t, "1")}}, reaching(t), "TMS_DEBUG=invariants")
	o := run(t, program, []string{"busy"}, reaching(t)).succeeded(t)
	require.Contains(t, o.stderr, "a resume brings all back before it returns")
	o = run(t, program, []string{"behind"}, reaching(t), "TMS_DEBUG=invariants").succeeded(t)
	require.Contains(t, o.stderr, "a gated pause, or an order that has failed, keeps memory paused")
	o = run(t, program, []string{"not held"}).succeeded(t)
	require.Contains(t, o.stderr, "start the program with tms run")
	o = run(t, program, []string{"killed"}, reaching(t))
	require.Equal(t, syscall.SIGKILL, o.state.Sys().(syscall.WaitStatus).Signal())
}
