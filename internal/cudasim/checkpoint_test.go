package cudasim

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pair starts a process that has memory, and one that acts on it.
func pair(t *testing.T, env ...string) (target, other *sharer, pid int) {
	g := newGroup(t)
	target, other = g.start(env...), g.start(env...)
	require.Equal(t, "0", target.do("allocate", 40*mib))
	require.Equal(t, "0", target.do("fill", 42))
	return target, other, target.cmd.Process.Pid
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
	require.Equal(t, "0 0", other.do("state", pid))
	require.Equal(t, "0", other.do("lock", pid))
	require.Equal(t, "0 1", other.do("state", pid))
	other.requireFree(24)
	require.Equal(t, "0", other.do("checkpoint", pid))
	require.Equal(t, "0 2", other.do("state", pid))
	other.requireFree(64)
	answer := target.waits("value", 0)
	require.Equal(t, "0", other.do("restore", pid))
	require.Equal(t, "0 1", other.do("state", pid))
	other.requireFree(24)
	require.Equal(t, "0", other.do("unlock", pid))
	require.Equal(t, "0 0", other.do("state", pid))
	require.Equal(t, "0 42", answer())
	require.Equal(t, "0", target.do("free", 0))
	other.requireFree(64)
}

func TestCheckpointsInAnotherState(t *testing.T) {
	const illegal = "401"
	_, other, pid := pair(t)
	refused := func(commands ...string) {
		t.Helper()
		for _, command := range commands {
			require.Equal(t, illegal, other.do(command, pid), command)
		}
	}
	refused("checkpoint", "restore", "unlock")
	require.Equal(t, "0", other.do("lock", pid))
	refused("lock", "restore")
	require.Equal(t, "0", other.do("checkpoint", pid))
	refused("lock", "checkpoint", "unlock")
	require.Equal(t, "0", other.do("restore", pid))
	refused("lock", "restore")
	require.Equal(t, "0", other.do("unlock", pid))
	refused("checkpoint", "restore", "unlock")
}

func TestARestoreWithoutMemory(t *testing.T) {
	_, other, pid := pair(t)
	require.Equal(t, "0", other.do("lock", pid))
	require.Equal(t, "0", other.do("checkpoint", pid))
	require.Equal(t, "0", other.do("allocate", 25*mib))
	require.Equal(t, "2", other.do("restore", pid))
	require.Equal(t, "0 2", other.do("state", pid))
	require.Equal(t, "401", other.do("unlock", pid))
	require.Equal(t, "0", other.do("free", 0))
	require.Equal(t, "0", other.do("restore", pid))
	other.requireFree(24)
	require.Equal(t, "0", other.do("unlock", pid))
}

func TestALockWaitsForCallsInside(t *testing.T) {
	target, other, pid := pair(t)
	require.Equal(t, "0", other.do("timeout", 100))
	require.Equal(t, "0", target.do("busy", 0))
	require.Equal(t, "600", other.do("lock", pid))
	require.Equal(t, "0 0", other.do("state", pid))
	require.Equal(t, "0 42", target.do("value", 0), "what came meanwhile goes on")
	require.Equal(t, "0", other.do("timeout", 60_000))
	locked := other.waits("lock", pid)
	target.calm()
	require.Equal(t, "0", locked())
	require.Equal(t, "0", other.do("unlock", pid))
}

// A locker killed while it waits leaves the process locked or running, never in between.
func TestAKilledLocker(t *testing.T) {
	target, other, pid := pair(t)
	killer := newGroupNamed(group{t, compile(t, "shared", 0), "killed"}, "one").start("CUDASIM_SHARED=")
	require.Equal(t, "0", target.do("busy", 0))
	killer.waits("lock", pid)
	require.Equal(t, "0 0", other.do("state", pid), "it is not locked yet")
	killer.kill()
	answer := target.waits("value", 0)
	target.calm()
	require.Eventually(t, func() bool { return other.do("state", pid) == "0 1" }, time.Minute, 10*time.Millisecond)
	require.Equal(t, "0", other.do("unlock", pid))
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
		require.Equal(t, code+" -1", other.do("state", pid), pid)
		for _, command := range []string{"lock", "checkpoint", "restore", "unlock"} {
			require.Equal(t, code, other.do(command, pid), "%s %d", command, pid)
		}
	}
	// The helper needs CUDA of its own only for the restore.
	require.Equal(t, "0", unstarted.do("lock", forker.cmd.Process.Pid))
	require.Equal(t, "0", unstarted.do("checkpoint", forker.cmd.Process.Pid))
	require.Equal(t, "3", unstarted.do("restore", forker.cmd.Process.Pid))
	require.Equal(t, "0", other.do("restore", forker.cmd.Process.Pid))
	require.Equal(t, "0", unstarted.do("unlock", forker.cmd.Process.Pid))
	require.Equal(t, "0", forker.do("reset", 0))
	require.Equal(t, "3 -1", other.do("state", forker.cmd.Process.Pid))
}

func TestAProcessOfAnotherUserCannotBeCheckpointed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	target, _, pid := pair(t)
	cmd := exec.Command(target.cmd.Path)
	makeReadable(t, target.cmd.Path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54399, Gid: 54399}}
	cmd.Env = environment(t)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("state %d\nlock %d\ncheckpoint %d\n", pid, pid, pid))
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "800 -1\n800\n800\n", string(out))
	require.Equal(t, "0 42", target.do("value", 0))
}

func TestSharedMemoryCannotBeCheckpointed(t *testing.T) {
	target, other, pid := pair(t)
	require.Equal(t, "0", target.do("export", 0))
	require.Equal(t, "0", other.do("lock", pid))
	answer := target.waits("value", 0)
	require.Equal(t, "801", other.do("checkpoint", pid))
	require.Equal(t, "0 3", other.do("state", pid))
	require.Equal(t, "999 0", answer())
	require.Equal(t, "401", other.do("unlock", pid))
}

func TestPlannedFailuresOfACheckpoint(t *testing.T) {
	g := newGroup(t)
	target := g.start()
	require.Equal(t, "0", target.do("allocate", mib))
	pid := target.cmd.Process.Pid
	other := g.start("CUDASIM_FAIL=cuCheckpointProcessLock:1:600,cuCheckpointProcessCheckpoint:1:2," +
		"cuCheckpointProcessRestore:1:2,cuCheckpointProcessUnlock:1:999,cuCheckpointProcessGetState:1:801")
	require.Equal(t, "801 -1", other.do("state", pid))
	for _, step := range []struct{ command, code, state string }{
		{"lock", "600", "0 0"}, {"lock", "0", "0 1"}, {"checkpoint", "2", "0 1"}, {"checkpoint", "0", "0 2"},
		{"restore", "2", "0 2"}, {"restore", "0", "0 1"}, {"unlock", "999", "0 1"}, {"unlock", "0", "0 0"},
	} {
		require.Equal(t, step.code, other.do(step.command, pid), step.command)
		require.Equal(t, step.state, other.do("state", pid), step.command)
	}
}

// A process killed before a step has done the steps before it, and no more.
func TestPlannedDeaths(t *testing.T) {
	_, other, pid := pair(t)
	for _, step := range []struct{ call, state string }{{"Lock", "0 0"}, {"Checkpoint", "0 1"}, {"GetState", "0 2"}} {
		cmd := exec.Command(other.cmd.Path)
		cmd.Env = append(environment(t), fmt.Sprintf("CUDASIM_FAIL=cuCheckpointProcess%s:1:kill", step.call))
		cmd.Stdin = strings.NewReader(fmt.Sprintf("lock %d\ncheckpoint %d\nstate %d\n", pid, pid, pid))
		require.ErrorContains(t, cmd.Run(), "signal: killed", step.call)
		require.Equal(t, step.state, other.do("state", pid), step.call)
		for _, command := range []string{"restore", "unlock"} {
			other.do(command, pid)
		}
	}
}

// A process that ends while it is checkpointed leaves nothing, and meanwhile its calls never return.
func TestACheckpointedProcessIsKilled(t *testing.T) {
	target, other, pid := pair(t)
	require.Equal(t, "0", other.do("lock", pid))
	require.Equal(t, "0", other.do("checkpoint", pid))
	target.waits("value", 0)
	target.kill()
	require.Equal(t, "1 -1", other.do("state", pid))
	other.requireFree(64)
}
