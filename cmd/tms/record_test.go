package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startRecording returns once the recording has begun, with the command's further output.
func startRecording(t *testing.T, s *steered, path string, out io.Writer) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	c := exec.Command(tms, "record", fmt.Sprint(s.Process.Pid), "-o", path)
	c.Stdout = out
	told, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	lines := bufio.NewScanner(told)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "Ctrl-C ends it")
	return c, lines
}

// recordFor records a program while it is paused and resumed, and returns the file.
func recordFor(t *testing.T, s *steered) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "it.trace")
	var out bytes.Buffer
	c, _ := startRecording(t, s, path, &out)
	s.do("pause weights")
	s.do("resume")
	require.NoError(t, c.Process.Signal(syscall.SIGINT))
	require.NoError(t, c.Wait())
	require.Regexp(t, fmt.Sprintf(`^%d: recorded, [\d.]+ \S+ in \d+\.\d s: %s\n$`, s.Process.Pid, path), out.String())
	return path
}

func TestRecord(t *testing.T) {
	ownSockets(t)
	s := startSteered(t, steeredProgram(t))
	pid := fmt.Sprint(s.Process.Pid)
	path := recordFor(t, s)

	out, words, code := command(t, "report", path, "--format", "perfetto", "-o", "-")
	require.Zero(t, code, words)
	var made struct {
		TraceEvents []struct {
			Ph, Name string
			Dur      float64
			Args     map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &made))
	slices, counters := map[string]float64{}, map[string]bool{}
	for _, e := range made.TraceEvents {
		switch e.Ph {
		case "X":
			slices[e.Name] = e.Args["bytes"].(float64)
			require.Positive(t, e.Dur)
		case "C":
			counters[e.Name] = true
		}
	}
	require.Equal(t, map[string]float64{"pause weights": 24 << 20, "resume": 24 << 20}, slices)
	require.Equal(t, map[string]bool{"weights, device 0, bytes": true, "cache, device 0, bytes": true}, counters)
	out, _, _ = command(t, "report", path, "--format", "csv", "-o", "-")
	require.Contains(t, out, ",allocate,")
	_, words, code = command(t, "replay", "--pool", "bfc", path)
	require.Zero(t, code, words)

	// For a given time; with a process that ends meanwhile; and without a process.
	start := time.Now()
	out, words, code = command(t, "record", pid, "-o", path, "--for", "300ms")
	require.Zero(t, code, words)
	require.Contains(t, out, pid+": recorded, ")
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	_, words, code = command(t, "record", pid, "-o", "/none/there", "--for", "1s")
	require.Equal(t, exitNo, code)
	require.Contains(t, words, "No such file or directory")
	recording, lines := startRecording(t, s, path, nil)
	require.NoError(t, s.Process.Kill())
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "what was recorded until then is in "+path)
	require.Error(t, recording.Wait())
	require.Equal(t, exitNoProcess, recording.ProcessState.ExitCode())
	_, words, code = command(t, "record", "999999999")
	require.Equal(t, exitNoProcess, code)
	require.Contains(t, words, "there is no such process")
	for _, arguments := range [][]string{{"record"}, {"record", "x"}, {"record", "1", "2"},
		{"record", "1", "--for", "-3s"}} {
		_, _, code = command(t, arguments...)
		require.Equal(t, exitUsage, code, arguments)
	}
}

func TestReportsThatCannotBe(t *testing.T) {
	t.Parallel()
	lines := write(t, "lines.csv", "Thread,Time,Action,Pointer,Size,Stream\n")
	out := filepath.Join(t.TempDir(), "out")
	for words, arguments := range map[string][]string{
		"give a trace":              {"-o", out},
		"give the file to write":    {lines},
		"the formats are":           {lines, "--format", "pdf", "-o", out},
		"csv takes one trace":       {lines, lines, "--format", "csv", "-o", out},
		"does not begin with":       {lines, "-o", out},
		"no such file or directory": {lines + ".none", "-o", out},
	} {
		_, stderr, code := execute(t, nil, append([]string{"report"}, arguments...))
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, words)
		_, err := os.Stat(out)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}
