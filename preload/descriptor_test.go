package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// complaints returns settings about which the library has two complaints: one of the region's settings, one of the
// trace's.
func complaints(t *testing.T) []string {
	return []string{"TMS_INIT_ENABLE=maybe", "TMS_TRACE=" + filepath.Join(t.TempDir(), "missing", "trace.csv")}
}

func requireComplaints(t *testing.T, text string) {
	t.Helper()
	require.Equal(t, 2, strings.Count(text, "\n"), text)
	require.Contains(t, text, "tms: TMS_INIT_ENABLE=maybe")
	require.Contains(t, text, "tms: the recording to ")
}

func TestMessagesGoToStderrOnly(t *testing.T) {
	program := compile(t, "descriptors", majors[1])
	file := filepath.Join(t.TempDir(), "file")

	o := run(t, program, []string{"stderr-database", file}, complaints(t)...).succeeded(t)
	require.Empty(t, o.stderr)

	run(t, program, []string{"stderr-log", file}, complaints(t)...).succeeded(t)
	text := read(t, file)
	requireComplaints(t, text)

	o = run(t, program, []string{"stderr-pipe", file}, complaints(t)...).succeeded(t)
	requireComplaints(t, o.stdout)

	run(t, program, []string{"stderr-broken", file}, complaints(t)...).succeeded(t)

	// Messages go to what descriptor 2 is at the start, whatever that is.
	script := `exec "$0" stderr-start "$1" 2>"$1"`
	run(t, "/bin/sh", []string{"-c", script, program, file}, complaints(t)...).succeeded(t)
	text = read(t, file)
	requireComplaints(t, text)
}

func TestTraceGoesToItsFileOnly(t *testing.T) {
	program := compile(t, "descriptors", majors[1])
	trace := filepath.Join(t.TempDir(), "trace.csv")

	o := run(t, program, []string{"trace-locked", trace}, "TMS_TRACE="+trace).succeeded(t)
	require.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
	require.Contains(t, o.stderr, "another process records to it")
	text := read(t, trace)
	require.Equal(t, "theirs\n", text)
	require.NoError(t, os.Remove(trace))

	o = run(t, program, []string{"trace-closed", trace}, "TMS_TRACE="+trace).succeeded(t)
	require.Empty(t, o.stderr) // it has no descriptor that can be closed
	require.Equal(t, strings.Repeat(" allocate free", 4), " "+strings.Join(actions(traced(t, trace)), " "))

	run(t, program, []string{"trace-above", trace}, "TMS_TRACE="+trace).succeeded(t)
	require.Equal(t, []string{"allocate", "free"}, actions(traced(t, trace)))
}

func actions(rows []string) (list []string) {
	for _, row := range rows {
		action, _, _ := strings.Cut(row, ",")
		list = append(list, action)
	}
	return list
}
