package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the library waits for, and what it holds during the wait.

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

// A resume waits for memory that another process holds. One line says which, for each wait.
func TestAResumeWaitsForMemory(t *testing.T) {
	o := run(t, compile(t, "shortage", majors[1]), nil, "TMS_RESUME_WAIT=10m", "CUDASIM_MEMORY=128M",
		fmt.Sprintf("CUDASIM_SHARED=shortage-%d", os.Getpid())).succeeded(t)
	var lines []string
	for line := range strings.Lines(o.stderr) {
		require.Contains(t, line, `tms: the resume of "w" waits for memory: device 0 (GPU-`)
		require.Contains(t, line, " free and 64.00 MiB are needed; ")
		require.Contains(t, line, strings.TrimSpace(o.stdout))
		require.Contains(t, line, "holds 90.00 MiB")
		lines = append(lines, line)
	}
	require.Len(t, lines, 4, o.stderr)
}

// A pause and resume take no memory from a program that frees a part of what it had.
func TestAllocationsAfterAResume(t *testing.T) {
	program := compile(t, "compaction", majors[1])
	each(t, program, alone("with"), reaching(t), "CUDASIM_MEMORY=512M", "TMS_DEBUG=invariants")
	each(t, program, alone("without"), "CUDASIM_MEMORY=512M", "TMS_DEBUG=invariants")
}
