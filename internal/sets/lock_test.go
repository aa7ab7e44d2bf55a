package sets

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/machine/process"
)

// lockVariable names the file that TestHoldsALock locks.
const lockVariable = "TESTED_LOCK"

// TestHoldsALock is the holder of TestLockOfAStoppedHolder. It ends with its standard input.
func TestHoldsALock(t *testing.T) {
	path := os.Getenv(lockVariable)
	if path == "" {
		t.Skip("TestLockOfAStoppedHolder runs it")
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, lock("set", int(file.Fd())))
	_, _ = os.Stdout.WriteString("\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, file.Close())
}

// A process that is stopped while it moves a set holds others up for a time, and they name it.
func TestLockOfAStoppedHolder(t *testing.T) {
	defer func(before time.Duration) { process.Patience = before }(process.Patience)
	process.Patience = 50 * time.Millisecond
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	holder := exec.Command(os.Args[0], "-test.run=^TestHoldsALock$")
	holder.Env = append(os.Environ(), lockVariable+"="+file.Name())
	held := hermetic.Hold(t, holder)

	held.Signal(unix.SIGSTOP)
	require.ErrorContains(t, lock("weights", int(file.Fd())), "set weights is held by process")

	held.Signal(unix.SIGCONT)
	taken := make(chan error)
	go func() { taken <- lock("weights", int(file.Fd())) }() // it is waited for
	held.End()
	require.NoError(t, <-taken)
}
