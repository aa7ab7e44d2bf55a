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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A program that is paused from outside, and asked to end.

type ending struct {
	*steered
	said *said
}

// said collects what a program writes.
type said struct {
	sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(text []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	return s.text.Write(text)
}

func (s *said) String() string {
	s.Lock()
	defer s.Unlock()
	return s.text.String()
}

// startEnding starts the program on a device that has room for it, and for nothing else.
func startEnding(t *testing.T, how string, environment ...string) *ending {
	t.Helper()
	collected := &said{}
	return startEndingWith(t, &exec.Cmd{Stderr: collected}, collected, how, environment...)
}

func startEndingWith(t *testing.T, c *exec.Cmd, collected *said, how string, environment ...string) *ending {
	t.Helper()
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	t.Setenv("CUDASIM_SHARED", filepath.Base(os.Getenv("TMPDIR")))
	t.Setenv("CUDASIM_MEMORY", "32M")
	c.Path = fixture(t, "ending")
	c.Args = []string{c.Path, how}
	c.Env = append(append(os.Environ(), "TMS_COMMAND="+tms, reaching(t)), environment...)
	e := &ending{startProgram(t, c), collected}
	require.Equal(t, "ready", e.line())
	return e
}

func (e *ending) pause(more ...string) {
	e.t.Helper()
	succeeds(e.t, append([]string{"pause", e.number()}, more...)...)
}

func (e *ending) send(signal syscall.Signal) {
	e.t.Helper()
	require.NoError(e.t, e.Process.Signal(signal))
}

// ends waits for the end, and returns the last line before it.
func (e *ending) ends() string {
	e.t.Helper()
	rest, err := io.ReadAll(e.answers)
	require.NoError(e.t, err)
	require.NoError(e.t, e.Wait())
	return strings.TrimSpace(string(rest))
}

func (e *ending) says(words string) {
	e.t.Helper()
	require.Eventually(e.t, func() bool { return strings.Contains(e.said.String(), words) }, time.Minute,
		time.Millisecond, "%s", e.said)
}

// pauses asks the process itself, because its calls wait while it is paused.
func (e *ending) isPaused() bool {
	e.t.Helper()
	state, err := status(e.Process.Pid, time.Minute)
	require.NoError(e.t, err)
	return state.HeldUp
}

// hogs takes what the program has given back, until it is told to give that up.
func (e *ending) hogs(environment ...string) *steered {
	e.t.Helper()
	hog := exec.Command(steeredProgram(e.t))
	hog.Env = append(append(os.Environ(), "LD_PRELOAD="+built(e.t, "lib", "libtms.so")), environment...)
	s := startProgram(e.t, hog)
	s.do("hog")
	return s
}

func TestASignalEndsAPausedProgram(t *testing.T) {
	for _, c := range []struct {
		how        string
		signal     syscall.Signal
		everything bool
		ends       string
	}{
		{"flag", syscall.SIGTERM, false, fmt.Sprintf("signal 15 from %d with 0, calls returned 0", os.Getpid())},
		{"flag", syscall.SIGINT, true, fmt.Sprintf("signal 2 from %d with 0, calls returned 0", os.Getpid())},
		{"plain", syscall.SIGINT, false, "signal 2 from 0 with 0, calls returned 0"}, // its futex is restarted
		{"apart", syscall.SIGTERM, false, fmt.Sprintf("signal 15 from %d with 0, calls returned 0", os.Getpid())},
		{"exits", syscall.SIGTERM, false, ""},
	} {
		t.Run(fmt.Sprint(c.how, c.signal), func(t *testing.T) {
			e := startEnding(t, c.how)
			for range 2 { // what the first pause has put in place is gone after it
				if c.everything {
					e.pause("--everything")
				} else {
					e.pause()
				}
				require.True(t, e.isPaused())
				succeeds(t, "resume", e.number())
				require.False(t, e.isPaused())
			}
			e.pause()
			e.send(c.signal)
			require.Equal(t, c.ends, e.ends())
			if c.how != "exits" {
				require.Contains(t, e.said.String(), "came while this program is paused, so it is being resumed")
			}
		})
	}
}

// What the program sees of its signals is its own, and other signals do not resume it.
func TestAPausedProgramsSignalsAreItsOwn(t *testing.T) {
	e := startEnding(t, "flag")
	before := e.do("action")
	e.pause()
	require.Equal(t, before, e.do("action"))
	for i, other := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGCHLD} {
		e.send(other)
		require.Eventually(t, func() bool { return e.do("others") == fmt.Sprint(i+1) }, time.Minute, 5*time.Millisecond)
	}
	e.send(syscall.SIGHUP) // no terminal, so it is not asked to end
	e.do("again")
	e.send(syscall.SIGSTOP)
	e.send(syscall.SIGCONT)
	time.Sleep(300 * time.Millisecond) // nothing happens in the time of three looks
	require.True(t, e.isPaused())
	require.Equal(t, "ok", e.do("vfork")) // its child resets all handlers, in this program's memory
	require.Equal(t, before, e.do("action"))
	require.Equal(t, "1", e.do("replace"))
	require.NotEqual(t, before, e.do("action"))
	e.send(syscall.SIGTERM)
	require.Contains(t, e.ends(), "signal 15")
	require.NotContains(t, e.said.String(), "SIGHUP")
}

func TestASignalWithoutMemory(t *testing.T) {
	for _, everything := range []bool{false, true} {
		t.Run(fmt.Sprint("everything ", everything), func(t *testing.T) {
			e := startEnding(t, "flag", "TMS_SIGNAL_WAIT=0.3")
			if everything {
				e.pause("--everything")
			} else {
				e.pause()
			}
			e.hogs()
			e.send(syscall.SIGTERM)
			require.Contains(t, e.ends(), "signal 15")
			require.Contains(t, e.said.String(), "fail with 401 (illegal state) from now on, so that it can end; if it "+
				"goes on, tms resume "+e.number()+" brings its memory back")
		})
	}
}

func TestASignalWaitsForMemory(t *testing.T) {
	e := startEnding(t, "flag", "TMS_SIGNAL_WAIT=10m")
	e.pause()
	hog := e.hogs()
	e.send(syscall.SIGTERM)
	e.says("SIGTERM came while this program is paused")
	hog.do("unhog")
	require.Contains(t, e.ends(), "calls returned 0")
}

// A program that does not end goes on after a resume, with its contents.
func TestCallsThatAreRefusedWorkAfterAResume(t *testing.T) {
	e := startEnding(t, "stays", "TMS_SIGNAL_WAIT=0")
	e.pause()
	hog := e.hogs()
	e.send(syscall.SIGINT)
	e.says("fail with 401")
	require.Equal(t, "401", e.do("failing"))
	e.send(syscall.SIGTERM) // which makes it try again
	e.says("SIGTERM came while this program is paused")
	hog.do("unhog")
	succeeds(t, "resume", e.number())
	require.False(t, e.isPaused())
	require.Equal(t, "0", e.do("failing"))
}

// A user at the terminal sees why the program stands still; Ctrl-C resumes and interrupts it, and so does the end of
// the terminal.
func TestATerminalSaysThatItsProgramIsPaused(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprint("hangs up ", hangs), func(t *testing.T) {
			master, slave := openTerminal(t)
			var collected strings.Builder
			c := &exec.Cmd{Stderr: slave, SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}}
			e := startEndingWith(t, c, nil, "flag")
			require.NoError(t, slave.Close())
			lines := bufio.NewReader(master)
			until := func(words string) {
				for line := ""; !strings.Contains(line, words); {
					var err error
					line, err = lines.ReadString('\n')
					require.NoError(t, err)
					collected.WriteString(line)
				}
			}
			e.pause()
			until("this program is paused from outside")
			require.Regexp(t, `tms: this program is paused from outside by tms pause \(\w+, process \d+\); tms resume `+
				e.number()+` continues it: its threads wait before their next CUDA call\. Ctrl-C resumes and interrupts `+
				`it\r\n`, collected.String())
			succeeds(t, "resume", e.number())
			until("tms resume has ended the pause: this program goes on")
			e.pause()
			until("this program is paused from outside")
			if hangs {
				require.NoError(t, master.Close())
				require.Contains(t, e.ends(), "signal 1 from")
				return
			}
			_, err := master.Write([]byte{3})
			require.NoError(t, err)
			require.Contains(t, e.ends(), "signal 2 from 0 with 128") // SI_KERNEL
		})
	}
}
