package hermetic

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// A run of tests that is killed leaves no process, not even one that had other folders than the run, and no folder.
func TestAKilledRun(t *testing.T) {
	if os.Getenv(killed) != "" {
		left := exec.Command("sleep", "600")
		left.Env = append(os.Environ(), "XDG_RUNTIME_DIR=/")
		left.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		require.NoError(t, left.Start())
		_, _ = fmt.Fprintln(os.Stderr, left.Process.Pid, os.Getenv("TMPDIR"))
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	run := exec.Command(os.Args[0], "-test.run=^TestAKilledRun$")
	run.Env = append(os.Environ(), killed+"=1")
	said, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	var pid int
	var folder string
	_, err = fmt.Fscan(said, &pid, &folder)
	require.NoError(t, err)
	require.Error(t, run.Wait())
	require.Eventually(t, func() bool {
		_, err := os.Stat(folder)
		ended, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // a zombie has none
		return os.IsNotExist(err) && len(ended) == 0
	}, time.Minute, 5*time.Millisecond)
}

const killed = "TESTS_KILLED"

func TestProcessesThatAreLeft(t *testing.T) {
	meeting := t.TempDir()
	require.NoError(t, allEnded(meeting, 0))
	left := exec.Command("sleep", "600")
	left.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+meeting)
	require.NoError(t, left.Start())
	require.Eventually(t, func() bool { // between fork and exec it is this program
		return allEnded(meeting, time.Millisecond) != nil
	}, time.Minute, time.Millisecond)
	require.Error(t, left.Wait(), "it was killed")
	require.NoError(t, allEnded(meeting, 0))
}
