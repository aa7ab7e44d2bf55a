package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFrozen(t *testing.T) {
	root := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		file = filepath.Join(root, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	const groups = "7:cpu,freezer:/docker/a\n1:name=systemd:/b\n0::/c\n"
	require.False(t, frozen(root, groups))
	for file, states := range map[string][2]string{
		"freezer/docker/a/freezer.state": {"FROZEN\n", "THAWED\n"},
		"c/cgroup.events":                {"populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"},
		"unified/c/cgroup.events":        {"populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"},
	} {
		write(file, states[0])
		require.True(t, frozen(root, groups), file)
		write(file, states[1])
		require.False(t, frozen(root, groups), file)
	}
}

// As `docker pause` and `scontrol suspend` do it, where there is a freezer that may be used.
func TestStopped(t *testing.T) {
	sleeps := exec.Command("sleep", "600")
	require.NoError(t, sleeps.Start())
	pid := sleeps.Process.Pid
	defer func() {
		_ = sleeps.Process.Kill()
		_ = sleeps.Wait()
	}()
	require.False(t, Stopped(pid))
	require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
	require.Eventually(t, func() bool { return Stopped(pid) }, time.Minute, time.Millisecond)
	require.NoError(t, unix.Kill(pid, unix.SIGCONT))
	require.Eventually(t, func() bool { return !Stopped(pid) }, time.Minute, time.Millisecond)

	group, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "tms-test-")
	if err != nil {
		t.Skipf("no freezer here: %v", err)
	}
	defer func() { // once the process has left it
		require.NoError(t, os.WriteFile("/sys/fs/cgroup/freezer/cgroup.procs", []byte(strconv.Itoa(pid)), 0o600))
		require.NoError(t, os.Remove(group))
	}()
	state := filepath.Join(group, "freezer.state")
	require.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
	require.NoError(t, os.WriteFile(state, []byte("FROZEN"), 0o600))
	require.Eventually(t, func() bool { return Stopped(pid) }, time.Minute, time.Millisecond)
	require.NoError(t, os.WriteFile(state, []byte("THAWED"), 0o600))
	require.Eventually(t, func() bool { return !Stopped(pid) }, time.Minute, time.Millisecond)
}
