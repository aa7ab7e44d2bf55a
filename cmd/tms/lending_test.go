package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/fleet"
)

// The cases of docs/lending.md: two users of one workstation, the end of a login, a fork, Ctrl-C.

// person is a user of the machine.
type person struct {
	t   *testing.T
	uid int
}

// as makes a command be that of a person.
func (p *person) as(c *exec.Cmd) *exec.Cmd {
	c.Env = append(append(os.Environ(), "XDG_RUNTIME_DIR="), c.Env...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.uid)}}
	return c
}

func (p *person) runs(arguments ...string) (stdout, stderr string, code int) {
	p.t.Helper()
	return ran(p.t, p.as(exec.Command(tms, arguments...)))
}

func (p *person) starts() *steered {
	p.t.Helper()
	program := exec.Command(steeredProgram(p.t))
	program.Env = []string{reaching(p.t), "CUDASIM_MEMORY=64M", "TMS_CONTROL=1", "TMS_COMMAND=" + tms}
	return startToListen(p.t, p.as(program))
}

// Anna lends her GPU to Bert, who is another user: his own tms neither sees nor changes her program, but root's does. (The
// simulator's devices are those of one user; TestLend has a neighbour that takes the memory.)
func TestALendBetweenUsers(t *testing.T) {
	hermetic.OtherUsers(t)
	hermetic.Reachable(t, built(t, "lib", "libtms.so"))
	ownSockets(t)
	require.NoError(t, os.Chmod(os.Getenv("TMPDIR"), 0o777|os.ModeSticky))
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	anna, bert := &person{t, 61001}, &person{t, 61002}
	training := anna.starts()

	// Bert cannot pause her program, or lend its memory to himself.
	bert.starts()
	soonest := time.Hour
	for _, arguments := range []string{"pause", "resume", "lend --for 1h", "pause --everything"} {
		begun := time.Now()
		_, words, code := bert.runs(append(strings.Fields(arguments), training.number())...)
		require.Equal(t, exitNoProcess, code, "%s: %s", arguments, words)
		require.Regexp(t, "^tms: "+training.number()+": it is a process of user 61001", words)
		soonest = min(soonest, time.Since(begun))
	}
	require.Less(t, soonest, control.Look, "no command waits for a socket that it may not see")
	require.True(t, training.isActive())

	out, words, code := anna.runs("lend", training.number(), "--for", "1h", "--to", "bert")
	require.Zero(t, code, words)
	require.Contains(t, out, "lent to bert until")

	// Anna sees the lend, Bert sees his own program alone, and root sees hers by its number.
	out, _, _ = anna.runs("ps")
	require.Contains(t, out, training.number()+": lent to bert until ")
	out, _, _ = bert.runs("ps", "--json")
	require.Len(t, parsed[[]fleet.Process](t, out), 1)
	out, words, code = bert.runs("ps", training.number())
	require.Equal(t, exitNoProcess, code)
	require.Empty(t, out)
	require.Regexp(t, "it is a process of user 61001", words)
	require.Contains(t, succeeds(t, "ps", training.number()), training.number()+": lent to bert until ")

	// Nor can Bert end the lend. Root ends it for him.
	_, words, code = bert.runs("resume", training.number())
	require.Equal(t, exitNoProcess, code, words)
	t.Setenv("SUDO_USER", "bert")
	succeeds(t, "resume", training.number())
	require.Equal(t, "ok", training.do("check"))

	// A pause by root on Bert's behalf is Bert's to Anna.
	succeeds(t, "pause", training.number())
	out, _, _ = anna.runs("ps")
	require.Contains(t, out, training.number()+": paused by bert (process ")
	_, words, code = anna.runs("resume", training.number())
	require.Zero(t, code, words)
	require.Equal(t, "ok", training.do("check"))
}

// The end of a login takes the directory with the program's socket. The lend goes on, and ends in time.
func TestALendOutlivesALogin(t *testing.T) {
	ownSockets(t)
	login := filepath.Join(os.Getenv("TMPDIR"), "login")
	require.NoError(t, os.Mkdir(login, 0o700))
	t.Setenv("XDG_RUNTIME_DIR", login)
	lent := startSteered(t, steeredProgram(t), reaching(t))
	succeeds(t, "lend", lent.number(), "--for", "1h", "--to", "bert")
	logout := func() {
		require.NoError(t, os.RemoveAll(login))
		require.Eventually(t, func() bool {
			_, _, code := command(t, "ps", lent.number())
			return code == 0
		}, time.Minute, 5*time.Millisecond)
	}
	logout()
	require.Equal(t, "bert", lent.pausedBy()[0].To)

	// The next login has another directory of that name.
	require.NoError(t, os.Mkdir(login, 0o700))
	require.Contains(t, succeeds(t, "ps"), lent.number()+": lent to bert until ")
	succeeds(t, "lend", lent.number(), "--for", "1s")
	logout()
	lent.becomesActive()
	require.Equal(t, "ok", lent.do("check"))
}

// A program that forks while it is lent stays lent, and its child takes no memory back.
func TestALendOfAProgramThatForks(t *testing.T) {
	lent, other, _ := startLent(t, reaching(t))
	succeeds(t, "lend", lent.number(), "--for", "1h")
	free := other.count("free")
	require.NotEqual(t, "0", lent.do("fork"), "tms works in a child without exec")
	lent.do("child")
	require.Len(t, lent.pausedBy(), 1)
	require.Equal(t, free, other.count("free"))
	succeeds(t, "lend", lent.number(), "--for", "1s")
	lent.becomesActive()
	require.Equal(t, "ok", lent.do("check"))
}

// Ctrl-C in the terminal of a lent program ends the program, and so the lend. Without room its calls fail.
func TestCtrlCEndsALentProgram(t *testing.T) {
	for _, room := range []bool{true, false} {
		e := startEnding(t, "flag")
		succeeds(t, "lend", e.number(), "--for", "1h")
		if !room {
			e.hogs()
		}
		e.send(syscall.SIGINT)
		if room {
			require.Contains(t, e.ends(), "calls returned 0")
		} else {
			require.Contains(t, e.ends(), "calls returned 401")
		}
	}
}

// Ctrl-C on the command before it has said "lent" leaves the program as it was.
func TestCtrlCOnALend(t *testing.T) {
	ownSockets(t)
	lent := startSteered(t, steeredProgram(t), reaching(t))
	lent.do("busy 600000")
	words := interrupted(t, func() bool { return lent.doing() == control.Pause }, "lend", lent.number(), "--for", "1h")
	require.Contains(t, words, "interrupted")
	require.Empty(t, lent.pausedBy())
	require.True(t, lent.isActive())
}
