package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/forward/calls"
	"tms/internal/aid/hermetic"
)

// checkingDriver returns a folder with a libcuda.so.1 that checks its calls (testdata/checking.c), and behind it the
// simulator by another name of the same length.
func checkingDriver(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	simulator, err := os.ReadFile(built(t, "sim", "libcuda.so.1"))
	require.NoError(t, err)
	behind := filepath.Join(folder, "libcuda.so.9")
	renamed := bytes.ReplaceAll(simulator, []byte("\x00libcuda.so.1\x00"), []byte("\x00libcuda.so.9\x00"))
	require.NoError(t, os.WriteFile(behind, renamed, 0o755)) //nolint:gosec
	made := hermetic.Compile(t, "libcuda.so.1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", rows(t), "testdata/checking.c", "-L"+folder, "-l:libcuda.so.9")
	require.NoError(t, os.Symlink(made, filepath.Join(folder, "libcuda.so.1")))
	return folder
}

// rows returns the option of the compiler for a folder with rows.h, which testdata/calls.h includes.
func rows(t *testing.T) string {
	t.Helper()
	functions, err := calls.Load()
	require.NoError(t, err)
	folder := filepath.Join(built(t), "_fixtures", "rows")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "rows.h"), []byte(calls.Tested(functions)), 0o644)) //nolint:gosec
	return "-I" + folder
}

// Every function of the driver that takes an address, a handle, a graph, a pool or a stream does as the table says.
func TestEveryCall(t *testing.T) {
	folder := checkingDriver(t)
	program := compile(t, "calls", majors[1], rows(t))
	libraries := "LD_LIBRARY_PATH=" + folder + ":" + built(t, "sim")
	o := run(t, program, []string{"paused"}, reaching(t), libraries).succeeded(t)
	require.Regexp(t, `^[2-9]\d\d wait, [2-9]\d\d pass\n$`, o.stdout)
	reach := "LD_PRELOAD=" + shared(t, "room") + " " + built(t, "lib", "libtms_reach.so")
	run(t, program, []string{"again"}, reach, libraries).succeeded(t)
}
