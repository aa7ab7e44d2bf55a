package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
)

// together runs programs of several processes, each with a meeting place and a simulated device of its own.
func together(t *testing.T, program string, parts []string, environment ...string) {
	t.Helper()
	for i, part := range parts {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			own := []string{"TMS_DEBUG=invariants", "XDG_RUNTIME_DIR=" + meeting(t),
				fmt.Sprintf("CUDASIM_SHARED=%s-%d-%d", filepath.Base(program), os.Getpid(), i)}
			run(t, program, []string{part}, append(own, environment...)...).succeeded(t)
		})
	}
}

// Two processes that share memory by CUDA's handles: testdata/ipc.c.
func TestMemoryOfOtherProcesses(t *testing.T) {
	for _, cudart := range eachMajor() {
		t.Run(cudart, func(t *testing.T) {
			together(t, compileWithDriver(t, "ipc", cudart), []string{"mutual", "lone", "exporter stopped", "unseen", "unheard", "lost",
				"main_ends", "freed", "killed", "importer_dies", "alone", "beside stopped", "crowd"}, reaching(t))
		})
	}
	program := compileWithDriver(t, "ipc", majors[1])
	run(t, program, []string{"not shared"}).succeeded(t)
	run(t, program, []string{"not shared"}, reaching(t), "TMS_SHAREABLE=0").succeeded(t)
}

// An answer to a process that no longer waits does no harm, neither to the thread that gives it nor to the next process
// that asks.
func TestAnAnswerThatIsLate(t *testing.T) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	require.NoError(t, err)
	defer unix.Close(self)
	if same, err := unix.PidfdGetfd(self, self, 0); err != nil {
		t.Skipf("the test takes another process's descriptor, which Docker's filter of system calls refuses: %v", err)
	} else {
		unix.Close(same)
	}
	o := run(t, compile(t, "lateanswer", majors[1]), nil, reaching(t), "TMS_DEBUG=invariants",
		"XDG_RUNTIME_DIR="+meeting(t), fmt.Sprint("CUDASIM_SHARED=late-", os.Getpid())).succeeded(t)
	require.Empty(t, o.stderr)
}

// NCCL takes handles of memory from the driver itself, which only libtms_reach.so lets the library see.
func TestMemoryThatNCCLMayHaveRegistered(t *testing.T) {
	program := compileWithDriver(t, "ipc", majors[1])
	const warning = "NCCL may have registered memory that CUDA graphs use"
	loaded := "NCCL=" + hermetic.Compile(t, "libnccl.so.2", "-shared", "-x", "c", os.DevNull)
	for _, variables := range [][]string{
		{loaded}, {loaded, "TMS_SHAREABLE=0"}, {loaded, "TMS_SHAREABLE=ipc", "NCCL_GRAPH_REGISTER=0"},
		{loaded, "TMS_SHAREABLE=ipc", reaching(t)}, {"TMS_SHAREABLE=ipc"},
	} {
		o := run(t, program, []string{"beside nccl"}, variables...).succeeded(t)
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
	together(t, compileWithDriver(t, "driveronly", ""), []string{""}, reaching(t), "TMS_SHAREABLE=1")
}
