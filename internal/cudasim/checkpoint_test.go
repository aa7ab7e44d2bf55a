package cudasim

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// pair starts a process that has memory, and one that acts on it.
func pair(t *testing.T, env ...string) (target, other *sharer, pid int) {
	g := newGroup(t)
	target, other = g.start(env...), g.start(env...)
	target.does(40*mib, "allocate")
	target.does(42, "fill")
	return target, other, target.cmd.Process.Pid
}

// does sends commands with a number. Each must be answered with 0, or with what is behind its "=".
func (s *sharer) does(number int, commands ...string) {
	s.t.Helper()
	for i, command := range commands {
		name, answer, other := strings.Cut(command, "=")
		if !other {
			answer = "0"
		}
		require.Equal(s.t, answer, s.do(name, number), "%d: %s", i, command)
	}
}

// waits checks that a command's answer has not come yet.
func (s *sharer) waits(command string, number int) (answer func() string) {
	s.t.Helper()
	s.send(command, number)
	came := make(chan string, 1)
	go func() {
		line, _ := s.stdout.ReadString('\n')
		came <- strings.TrimSpace(line)
	}()
	select {
	case line := <-came:
		require.Fail(s.t, "it did not wait", line)
	case <-time.After(100 * time.Millisecond):
	}
	return func() string { return <-came }
}

// calm ends the process's being busy.
func (s *sharer) calm() { require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGUSR1)) }

func TestACheckpointedProcessHoldsNothing(t *testing.T) {
	target, other, pid := pair(t)
	other.does(pid, "state=0 0", "lock", "state=0 1")
	other.requireFree(24)
	other.does(pid, "checkpoint", "state=0 2")
	other.requireFree(64)
	answer := target.waits("value", 0)
	other.does(pid, "restore", "state=0 1")
	other.requireFree(24)
	other.does(pid, "unlock", "state=0 0")
	require.Equal(t, "0 42", answer())
	target.does(0, "free")
	other.requireFree(64)
}

func TestCheckpointsInAnotherState(t *testing.T) {
	_, other, pid := pair(t)
	other.does(pid, "checkpoint=401", "restore=401", "unlock=401")
	other.does(pid, "lock", "lock=401", "restore=401")
	other.does(pid, "checkpoint", "lock=401", "checkpoint=401", "unlock=401")
	other.does(pid, "restore", "lock=401", "restore=401")
	other.does(pid, "unlock", "checkpoint=401", "restore=401", "unlock=401")
}

// As driver 580 does: the first restore that finds too little memory is the last, whatever is free afterwards.
func TestARestoreWithoutMemory(t *testing.T) {
	target, other, pid := pair(t)
	other.does(pid, "lock", "checkpoint")
	other.does(25*mib, "allocate")
	other.does(pid, "restore=2", "state=0 2", "unlock=401", "restore=304")
	other.does(0, "free")
	other.does(pid, "restore=304", "restore=304", "state=0 2", "unlock=401")
	other.requireFree(64)
	target.kill()
	other.does(pid, "state=1 -1")
}

func TestARestoreOnAnotherDevice(t *testing.T) {
	target, other, pid := pair(t, "CUDASIM_DEVICES=2")
	mebibytes := func(first, second string) {
		t.Helper()
		other.does(0, "mebibytes="+first)
		other.does(1, "mebibytes="+second)
	}
	for i, place := range []string{"1", "0"} {
		other.does(pid, "lock", "checkpoint", "incomplete=1", "state=0 2")
		mebibytes("64", "64")
		if other.does(pid, "reverse", "state=0 1"); place == "1" {
			mebibytes("64", "24")
		} else {
			mebibytes("24", "64")
		}
		other.does(pid, "unlock")
		target.does(0, "value=0 42", "place="+place)
		target.does(1, "place="+[]string{"0", "1"}[i])
	}
	other.does(pid, "lock", "checkpoint", "reverse", "unlock")
	other.does(pid, "lock", "checkpoint", "restore", "unlock") // where it was
	mebibytes("64", "24")
	target.does(8*mib, "allocate")
	mebibytes("64", "16")
	target.does(0, "mebibytes=16")
	target.does(0, "free")
	mebibytes("64", "64")
}

func TestARestoreOnADeviceThatIsFull(t *testing.T) {
	g := newGroup(t)
	first, target, other := g.start("CUDASIM_DEVICES=2"), g.start("CUDASIM_DEVICES=2"), g.start("CUDASIM_DEVICES=2")
	first.does(40*mib, "allocate")
	other.does(first.cmd.Process.Pid, "lock", "checkpoint", "reverse", "unlock")
	target.does(40*mib, "allocate")
	target.does(42, "fill")
	pid := target.cmd.Process.Pid
	other.does(pid, "lock", "checkpoint")
	first.does(0, "free")
	other.does(pid, "reverse", "unlock")
	target.does(0, "value=0 42", "place=1")
	other.does(40*mib, "allocate") // where the target was, and would go back to
	other.does(pid, "lock", "checkpoint", "reverse=2", "restore=304", "reverse=304", "state=0 2")
}

func TestARestoreOnAnotherModel(t *testing.T) {
	target, other, pid := pair(t, "CUDASIM_DEVICES=2", "CUDASIM_NAME=one,another")
	other.does(pid, "lock", "checkpoint", "reverse=801", "restore", "unlock")
	target.does(0, "value=0 42", "place=0")
}

func TestALockWaitsForCallsInside(t *testing.T) {
	target, other, pid := pair(t)
	other.does(100, "timeout")
	target.does(0, "busy")
	other.does(pid, "lock=600", "state=0 0")
	target.does(0, "value=0 42") // a call that came during the lock goes on
	other.does(60_000, "timeout")
	locked := other.waits("lock", pid)
	target.calm()
	require.Equal(t, "0", locked())
	other.does(pid, "unlock")
}

// A locker killed while it waits leaves the process locked or running, never in between.
func TestAKilledLocker(t *testing.T) {
	target, other, pid := pair(t)
	killer := newGroupNamed(group{t, compile(t, "shared", 0), "killed"}, "one").start("CUDASIM_SHARED=")
	target.does(0, "busy")
	killer.waits("lock", pid)
	other.does(pid, "state=0 0") // it is not locked yet
	killer.kill()
	answer := target.waits("value", 0)
	target.calm()
	require.Eventually(t, func() bool { return other.do("state", pid) == "0 1" }, time.Minute, 10*time.Millisecond)
	other.does(pid, "unlock")
	require.Equal(t, "0 42", answer())
}

func TestWhoCanBeCheckpointed(t *testing.T) {
	g := newGroup(t)
	other := g.start()
	sleeper := exec.Command("sleep", "60")
	require.NoError(t, sleeper.Start())
	t.Cleanup(func() { sleeper.Process.Kill(); sleeper.Wait() })
	unstarted, forker := g.process(), g.start()
	var child int
	_, err := fmt.Sscan(forker.do("fork", 60_000), &child)
	require.NoError(t, err)
	defer syscall.Kill(child, syscall.SIGKILL)
	for pid, code := range map[int]string{
		0: "1", -1: "1", 1 << 30: "1",
		sleeper.Process.Pid: "3", unstarted.cmd.Process.Pid: "3", child: "3",
	} {
		other.does(pid, "state="+code+" -1", "lock="+code, "checkpoint="+code, "restore="+code, "unlock="+code)
	}
	// The helper needs CUDA of its own only for the restore.
	pid := forker.cmd.Process.Pid
	unstarted.does(pid, "lock", "checkpoint", "restore=3")
	other.does(pid, "restore")
	unstarted.does(pid, "unlock")
	forker.does(0, "reset")
	other.does(pid, "state=3 -1")
}

func TestAProcessOfAnotherUserCannotBeCheckpointed(t *testing.T) {
	hermetic.OtherUsers(t)
	target, _, pid := pair(t)
	lines := fmt.Sprintf("state %d\nlock %d\ncheckpoint %d\n", pid, pid, pid)
	out, _, err := obeys(readable(t, target.cmd.Path), 54399, lines, environment(t)...)
	require.NoError(t, err)
	require.Equal(t, "800 -1\n800\n800\n", out)
	require.Equal(t, "0 42", target.do("value", 0))
}

func TestSharedMemoryCannotBeCheckpointed(t *testing.T) {
	target, other, pid := pair(t)
	target.does(0, "export")
	other.does(pid, "lock")
	answer := target.waits("value", 0)
	other.does(pid, "checkpoint=801", "state=0 3")
	require.Equal(t, "999 0", answer())
	other.does(pid, "unlock=401")
}

func TestPlannedFailuresOfACheckpoint(t *testing.T) {
	g := newGroup(t)
	target := g.start()
	target.does(mib, "allocate")
	pid := target.cmd.Process.Pid
	other := g.start("CUDASIM_FAIL=cuCheckpointProcessLock:1:600,cuCheckpointProcessCheckpoint:1:2," +
		"cuCheckpointProcessRestore:1:999,cuCheckpointProcessUnlock:1:999,cuCheckpointProcessGetState:1:801")
	other.does(pid, "state=801 -1", "lock=600", "state=0 0", "lock", "state=0 1", "checkpoint=2", "state=0 1",
		"checkpoint",
		"state=0 2", "restore=999", "state=0 2", "restore", "state=0 1", "unlock=999", "state=0 1", "unlock", "state=0 0")
}

func TestAPlannedLackOfMemoryLosesTheProcess(t *testing.T) {
	target, other, pid := pair(t, "CUDASIM_FAIL=cuCheckpointProcessRestore:1:2")
	other.does(pid, "lock", "checkpoint", "restore=2", "restore=304")
	target.kill()
}

// A process killed before a step has done the steps before it, and no more.
func TestPlannedDeaths(t *testing.T) {
	_, other, pid := pair(t)
	for _, step := range []struct{ call, state string }{{"Lock", "0 0"}, {"Checkpoint", "0 1"}, {"GetState", "0 2"}} {
		lines := fmt.Sprintf("lock %d\ncheckpoint %d\nstate %d\n", pid, pid, pid)
		_, _, err := obeys(other.cmd.Path, 0, lines, append(environment(t),
			"CUDASIM_FAIL=cuCheckpointProcess"+step.call+":1:kill")...)
		require.ErrorContains(t, err, "signal: killed", step.call)
		other.does(pid, "state="+step.state)
		for _, command := range []string{"restore", "unlock"} {
			other.do(command, pid)
		}
	}
}

// A process that ends while it is checkpointed leaves nothing. Until then its calls never return.
func TestACheckpointedProcessIsKilled(t *testing.T) {
	target, other, pid := pair(t)
	other.does(pid, "lock", "checkpoint")
	target.waits("value", 0)
	target.kill()
	other.does(pid, "state=1 -1")
	other.requireFree(64)
}
