package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/hermetic"
)

// Two processes that share memory by CUDA's handles: testdata/ipc.c.
func TestMemoryOfOtherProcesses(t *testing.T) {
	for _, cudart := range eachMajor() {
		program := compileWithDriver(t, "ipc", cudart)
		for _, what := range []string{"mutual", "lone", "unseen", "unheard", "lost", "main_ends", "freed", "killed", "importer_dies", "alone", "beside stopped", "crowd"} {
			t.Run(what+" "+cudart, func(t *testing.T) {
				sockets(t)
				o := run(t, program, []string{what}, reaching(t), "TMS_DEBUG=invariants", fmt.Sprint("CUDASIM_SHARED=ipc-", os.Getpid(), "-", what))
				o.succeeded(t)
			})
		}
	}
	program := compileWithDriver(t, "ipc", majors[1])
	run(t, program, []string{"not shared"}).succeeded(t)
	run(t, program, []string{"not shared"}, reaching(t), "TMS_SHAREABLE=0").succeeded(t)
}

// An answer that nobody waits for any longer does no harm, neither to the thread that gives it nor to the next process
// that asks.
func TestAnAnswerThatIsLate(t *testing.T) {
	sockets(t)
	o := run(t, compile(t, "lateanswer", majors[1]), nil, reaching(t), "TMS_DEBUG=invariants",
		fmt.Sprint("CUDASIM_SHARED=late-", os.Getpid()))
	o.succeeded(t)
	require.Empty(t, o.stderr)
}

// NCCL takes handles of memory from the driver itself, which only libtms_reach.so lets the library see.
func TestMemoryThatNCCLMayHaveRegistered(t *testing.T) {
	program, library := compileWithDriver(t, "ipc", majors[1]), hermetic.Compile(t, "libnccl.so.2", "-shared", "-x", "c", os.DevNull)
	const warning = "NCCL may have registered memory that CUDA graphs use"
	loaded := "NCCL=" + library
	for _, variables := range [][]string{
		{loaded}, {loaded, "TMS_SHAREABLE=0"}, {loaded, "TMS_SHAREABLE=ipc", "NCCL_GRAPH_REGISTER=0"},
		{loaded, "TMS_SHAREABLE=ipc", reaching(t)}, {"TMS_SHAREABLE=ipc"},
	} {
		o := run(t, program, []string{"beside nccl"}, variables...)
		o.succeeded(t)
		require.NotContains(t, o.stderr, warning, variables)
	}
	for _, setting := range []string{"ipc", "1"} {
		o := run(t, program, []string{"beside nccl"}, loaded, "TMS_SHAREABLE="+setting)
		require.Zero(t, o.state.ExitCode(), o.stderr)
		require.Equal(t, 1, strings.Count(o.stderr, warning), o.stderr)
	}
}

// A program that uses the driver API alone has no libcudart that could say which device is meant.
func TestMemoryOfOtherProcessesWithoutCudart(t *testing.T) {
	sockets(t)
	program := compileWith(t, "driveronly", "", "-L"+built(t, "sim"), "-l:libcuda.so.1")
	run(t, program, nil, reaching(t), "TMS_SHAREABLE=1", fmt.Sprint("CUDASIM_SHARED=driveronly-", os.Getpid())).succeeded(t)
}
