package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// startRecording returns once the recording has begun, with the command's further output.
func startRecording(t *testing.T, s *steered, path string, out io.Writer) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	c := exec.Command(tms, "record", s.number(), "-o", path)
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
	s.do("pause weights", "resume")
	require.NoError(t, c.Process.Signal(syscall.SIGINT))
	require.NoError(t, c.Wait())
	require.Regexp(t, fmt.Sprintf(`^%d: recorded, [\d.]+ \S+ in \d+\.\d s: %s\n$`, s.Process.Pid, path), out.String())
	return path
}

func TestRecord(t *testing.T) {
	ownSockets(t)
	s := startSteered(t, steeredProgram(t))
	pid := s.number()
	path := recordFor(t, s)

	out := succeeds(t, "report", path, "--format", "perfetto", "-o", "-")
	made := parsed[struct {
		TraceEvents []struct {
			Ph, Name string
			Dur      float64
			Args     map[string]any
		}
	}](t, out)
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

	// Without -o it names its file itself, and never one of the traces.
	page := strings.TrimSuffix(path, "trace") + "html"
	require.Equal(t, "wrote "+page+"\n", succeeds(t, "report", path))
	require.FileExists(t, page)
	bad := filepath.Join(t.TempDir(), "bad")
	require.NoError(t, os.WriteFile(bad+".trace", []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(bad+".html", []byte("an earlier page"), 0o600))
	fails(t, exitUsage, "malformed trace", "report", bad+".trace")
	earlier, err := os.ReadFile(bad + ".html")
	require.NoError(t, err)
	require.Equal(t, "an earlier page", string(earlier))
	require.NoFileExists(t, bad+".html.part")
	recorded, err := os.ReadFile(path)
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(path, link))
	for _, arguments := range [][]string{{path, "-o", link}, {page, path, "-o", path}, {link, "-o", path}} {
		fails(t, exitUsage, " is a trace, and would be lost: name another file with -o\n",
			append([]string{"report"}, arguments...)...)
	}
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, recorded, kept)
	plain := filepath.Join(filepath.Dir(path), "plain")
	require.NoError(t, os.Rename(path, plain))
	require.Equal(t, "wrote "+plain+".json\n", succeeds(t, "report", plain, "--format", "perfetto"))
	require.NoError(t, os.Rename(plain, path))
	succeeds(t, "replay", "--pool", "bfc", path)

	// For a given time; with a process that ends during the recording; and without a process.
	start := time.Now()
	require.Contains(t, succeeds(t, "record", pid, "-o", path, "--for", "300ms"), pid+": recorded, ")
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	fails(t, exitNo, "No such file or directory", "record", pid, "-o", "/none/there", "--for", "1s")
	recording, lines := startRecording(t, s, path, nil)
	require.NoError(t, s.Process.Kill())
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "what was recorded until then is in "+path)
	require.Error(t, recording.Wait())
	require.Equal(t, exitNoProcess, recording.ProcessState.ExitCode())
	fails(t, exitNoProcess, "there is no such process", "record", "999999999")
}

// A wait for memory is one resume in a report, with all its time, whether memory comes or not.
func TestReportOfAWait(t *testing.T) {
	hermetic.Thorough(t)
	large, small, _ := pair(t)
	path := filepath.Join(t.TempDir(), "it.trace")
	recording, _ := startRecording(t, large, path, nil)
	waiting := exec.Command(tms, "resume", large.number(), "--wait", "600")
	require.NoError(t, waiting.Start())
	time.Sleep(1200 * time.Millisecond) // the length of the wait that the report has to show
	succeeds(t, "pause", small.number())
	require.NoError(t, waiting.Wait())
	succeeds(t, "pause", large.number())
	succeeds(t, "resume", small.number())
	_, _, code := once(t, "resume", large.number(), "--wait", "1.2")
	require.Equal(t, exitNo, code)
	require.NoError(t, recording.Process.Signal(syscall.SIGINT))
	require.NoError(t, recording.Wait())
	made := parsed[struct {
		TraceEvents []struct {
			Ph, Name string
			Dur      float64 // us
		}
	}](t, succeeds(t, "report", path, "--format", "perfetto", "-o", "-"))
	var resumes []string
	for _, e := range made.TraceEvents {
		if e.Ph == "X" && strings.HasPrefix(e.Name, "resume") {
			resumes = append(resumes, e.Name)
			require.Greater(t, e.Dur, 1e6)
		}
	}
	require.Len(t, resumes, 2, "one that waited until it had memory, one that gave up")
}
