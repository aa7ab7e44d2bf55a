package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// tmux is a terminal.
type tmux struct {
	t      *testing.T
	socket string
}

// openTmux runs a line of shell in a terminal of 80 x 24.
func openTmux(t *testing.T, line string, environment ...string) *tmux {
	t.Helper()
	program := hermetic.Program(t, "tmux")
	folder, err := os.MkdirTemp("/tmp", "tms-tmux-") // a socket's path is short
	require.NoError(t, err)
	s := &tmux{t, filepath.Join(folder, "socket")}
	c := exec.Command(program, "-f", "/dev/null", "-S", s.socket, "new-session", "-d", "-x", "80", "-y", "24", line)
	c.Env = append(append(os.Environ(), "LC_ALL=C.UTF-8", "SHELL=/bin/sh", "TMUX="), environment...)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		_ = exec.Command("tmux", "-S", s.socket, "kill-server").Run()
		_ = os.RemoveAll(folder)
	})
	return s
}

func (s *tmux) do(arguments ...string) string {
	s.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", s.socket}, arguments...)...).CombinedOutput()
	require.NoError(s.t, err, "tmux %v: %s", arguments, out)
	return strings.TrimRight(string(out), "\n")
}

func (s *tmux) press(keys ...string) {
	s.t.Helper()
	s.do(append([]string{"send-keys"}, keys...)...)
}

// shows waits until the screen matches.
func (s *tmux) shows(pattern string) {
	s.t.Helper()
	wanted := regexp.MustCompile(pattern)
	for start := time.Now(); !wanted.MatchString(s.do("capture-pane", "-p")); time.Sleep(50 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			require.Regexp(s.t, pattern, s.do("capture-pane", "-p"))
		}
	}
}

// restored checks that the command has ended well and left the terminal as it was.
func (s *tmux) restored(folder string) {
	s.t.Helper()
	s.shows("(?m)^ended 0$")
	require.Equal(s.t, "0 1", s.do("display-message", "-p", "#{alternate_on} #{cursor_flag}"))
	before, err := os.ReadFile(filepath.Join(folder, "before"))
	require.NoError(s.t, err)
	require.NotEmpty(s.t, before)
	require.Eventually(s.t, func() bool {
		after, err := os.ReadFile(filepath.Join(folder, "after"))
		return err == nil && string(after) == string(before)
	}, time.Minute, 10*time.Millisecond, "the settings of the terminal")
}

// running returns the shell line that runs tms top, and notes the terminal's state before and after.
func running(folder string, arguments ...string) string {
	return fmt.Sprintf("cd %s; stty -a >before; %s top %s; echo ended $?; stty -a >after; exec sleep 600", folder,
		tms, strings.Join(arguments, " "))
}

func TestTop(t *testing.T) {
	ownSockets(t)
	program, folder := steeredProgram(t), t.TempDir()
	device := fmt.Sprintf("CUDASIM_SHARED=top-%d", os.Getpid())
	start := func() *steered {
		command := exec.Command(tms, "run", "--", program)
		command.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"),
			"LD_LIBRARY_PATH="+built(t, "sim"), "LD_PRELOAD=",
			device, "CUDASIM_MEMORY=128M")
		return startToListen(t, command)
	}
	one, other := start(), start()
	if one.Process.Pid > other.Process.Pid { // of two that hold as much, the lower number comes first
		one, other = other, one
	}
	first, second := one.number(), other.number()
	s := openTmux(t, running(folder), "LD_LIBRARY_PATH="+built(t, "sim"), device)
	s.shows(`(?s)2 processes, sorted by most held.*\n0 cudasim .* 64.0 MiB 64.0 MiB +0  128 MiB\n.*\n` +
		`> +` + first + ` steered .* 32.0 MiB +0 active.*` + second +
		` steered .* 32.0 MiB +0 active.*listed here as they happen`)
	require.Contains(t, s.do("capture-pane", "-p", "-e"), "\x1b[32m", "in colours")

	s.shows(first + `: held 32.0 MiB, paused 0, backup 0; p frees 8.00 MiB without contents;`)
	s.press("p")
	s.shows(first + `: paused, 32.00 MiB freed in \d.\d\d s, 8.00 MiB without contents`)
	s.shows(`(?s)> +` + first + ` steered .* 24.0 MiB paused.*GPU 0 +cache .* 0 paused \ds.*weights .* 24.0 MiB ` +
		`paused \ds`)
	s.shows(`(?s)\n0 cudasim .* 32.0 MiB 96.0 MiB .*` + first +
		` paused cache, weights on GPU 0: 32.0 MiB in \d[.\d]* s, 8.00 MiB`)
	require.Equal(t, uint64(0), held(t, one))
	s.press("Down") // one of its tags
	words := "tms resume " + first + " continues it; paused 8.00 MiB, slack 0, backup 0, 8.00 MiB without contents;"
	s.shows(`(?s)cache: paused by .*` + strings.ReplaceAll(words, " ", `\s+`)) // lines end as the user's name has them
	s.press("r")
	s.shows(`(?s)` + first + ` steered .*partly.*> +GPU 0 +cache .* 8.00 MiB +0 active.*weights .* paused`)
	s.press("p")
	s.shows(first + ` paused cache on GPU 0: 8.00 MiB in`)
	s.press("Up", "r")
	s.shows(`(?s)> +` + first + ` steered .*active.*` + first + ` resumed cache, weights on GPU 0: 32.0 MiB in \d`)
	require.Equal(t, "ok", one.do("check"))

	// The screen says what cannot be done.
	s.press("p")
	s.shows(`\n> +` + first + ` .* paused`)
	other.do("hog")
	s.press("r")
	s.shows(first + `: resume: GPU 0 has 0 bytes free and 32.00 MiB are needed`)
	other.do("unhog")
	s.press("r")
	s.shows(`\n> +` + first + ` .* active`)

	// A process that does not answer holds nothing up.
	stop(t, other.Process)
	s.shows(second + ` steered .* 32.0 MiB +\S.* no answer`)
	s.press("p")
	s.shows(`\n +` + second + ` (?s).*no answer.*\n> +` + first + ` .* paused`)
	require.NoError(t, other.Process.Signal(syscall.SIGCONT))
	s.shows(second + ` .* active`)
	s.press("r")
	s.shows(first + ` .* active`)

	s.press("/", second, "Enter")
	s.shows(`(?s)with "` + second + `".*> +` + second)
	s.do("resize-window", "-x", "40", "-y", "10")
	s.shows(`p pause  r resume  s  /  h help  q quit$`)
	s.do("resize-window", "-x", "80", "-y", "24")
	s.press("Escape") // a key right behind it would make it another key
	s.shows(`sorted by most held +\d`)
	s.press("h")
	s.shows("any other key goes back")
	s.press("h", "s")
	s.shows("sorted by longest paused")
	other.end()
	s.shows("1 process, ")
	s.press("q")
	s.restored(folder)
}

func (s *steered) end() {
	_ = s.Process.Kill()
	_ = s.Wait()
}

func TestTopWithoutColoursAndNVML(t *testing.T) {
	ownSockets(t)
	one, folder := startSteered(t, steeredProgram(t)), t.TempDir()
	s := openTmux(t, running(folder), "NO_COLOR=1", "LC_ALL=C")
	s.shows(`(?s)dev 0 .* 32.0 MiB  224 MiB .*as the processes see them: NVML.*> +` + one.number() +
		` steered +#+ .* active`)
	require.NotRegexp(t, `\x1b\[[0-9;]*[34][0-7]m`, s.do("capture-pane", "-p", "-e"))
	s.press("p") // the process has no gate, and the pause is not forced
	s.shows(one.number() + `: libtms_reach.so is not preloaded`)
	shell, err := strconv.Atoi(s.do("display-message", "-p", "#{pane_pid}"))
	require.NoError(t, err)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", shell, shell))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.Fields(string(children))[0])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	s.restored(folder)
}

// Ctrl-Z gives the terminal back as it was, and fg draws the screen again.
func TestTopSuspended(t *testing.T) {
	ownSockets(t)
	folder := t.TempDir()
	s := openTmux(t, fmt.Sprintf("cd %s; stty -a >before; set -m; %s top; stty -a >after; echo ended 0; read key; fg; "+
		"echo over; exec sleep 600", folder, tms), "LD_LIBRARY_PATH="+built(t, "sim"))
	s.shows("listed here as they happen")
	s.press("h")
	s.shows("any other key goes back")
	s.press("C-z")
	s.restored(folder)
	s.press("Enter")
	s.shows("(?s)^tms top\n.*any other key goes back")
	s.press("h")
	s.shows("(?s)^tms top  0 processes.*listed here as they happen")
	s.press("q")
	s.shows("(?m)^over$")
	require.Equal(t, "0 1", s.do("display-message", "-p", "#{alternate_on} #{cursor_flag}"))
}

// Where no shell could continue it, as below ssh -t HOST tms top, Ctrl-Z does not end the view's life.
func TestTopCannotBeSuspended(t *testing.T) {
	ownSockets(t)
	s := openTmux(t, running(t.TempDir()), "LD_LIBRARY_PATH="+built(t, "sim"))
	s.shows("sorted by most held")
	s.press("C-z")
	s.press("s")
	s.shows("sorted by longest paused(?s).*listed here as they happen")
}

func TestTopOfAJob(t *testing.T) {
	ownSockets(t)
	program, device := steeredProgram(t), fmt.Sprintf("CUDASIM_SHARED=topjob-%d", os.Getpid())
	startSteered(t, program, device)
	rank := startSteered(t, program, device, "TORCHELASTIC_RUN_ID=lively")
	s := openTmux(t, running(t.TempDir(), "--job", "lively"), "LC_ALL=C", device)
	// the device with all processes
	s.shows(`(?s)1 process, .*dev 0 .* 64.0 MiB  192 MiB .*> +` + rank.number() + ` steered .* active`)
	rank.end()
	s.shows("no process of job lively listens")
}

func TestTopNeedsATerminal(t *testing.T) {
	_, stderr, code := command(t, "top")
	require.Equal(t, exitUsage, code)
	require.Equal(t, "tms: top is for a terminal, and stdin is none: tms ps shows the same, and watch tms ps "+
		"repeats it\n", stderr)
	_, slave := openTerminal(t)
	for kind, words := range map[string]string{"dumb": "TERM=dumb is none", "": "TERM= is none"} {
		c := exec.Command(tms, "top")
		var said strings.Builder
		c.Stdin, c.Stdout, c.Stderr, c.Env = slave, slave, &said, append(os.Environ(), "TERM="+kind)
		require.Error(t, c.Run())
		require.Equal(t, exitUsage, c.ProcessState.ExitCode())
		require.Contains(t, said.String(), words)
		require.Contains(t, said.String(), "tms ps")
	}
}
