package main

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	numbering "tms/internal/process"
)

// A process that is stopped while it has the lock of a device holds others up for a time, and they name it.
func TestLockOfAStoppedHolder(t *testing.T) {
	ownSockets(t)
	defer func(before time.Duration) { numbering.Patience = before }(numbering.Patience)
	numbering.Patience = 50 * time.Millisecond
	unlock, err := lock("GPU-1")
	require.NoError(t, err)
	unlock()
	directory, err := control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
	require.NoError(t, err)
	holder := exec.Command("flock", directory+"/GPU-1.lock", "sh", "-c", "echo; exec cat")
	holder.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	input, err := holder.StdinPipe()
	require.NoError(t, err)
	output, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	_, err = output.Read(make([]byte, 1))
	require.NoError(t, err)

	failed := make(chan error)
	go func() {
		_, err := lock("GPU-1")
		failed <- err
	}()
	select {
	case err = <-failed:
		require.NoError(t, err, "the holder works")
	case <-time.After(10 * numbering.Patience):
	}

	require.NoError(t, unix.Kill(-holder.Process.Pid, unix.SIGSTOP))
	err = <-failed
	require.ErrorContains(t, err, "the lock of GPU-1 is held by process")
	require.ErrorContains(t, err, "(flock), which is stopped")

	require.NoError(t, unix.Kill(-holder.Process.Pid, unix.SIGCONT))
	require.NoError(t, input.Close())
	_, _ = io.Copy(io.Discard, output)
	require.NoError(t, holder.Wait())
	unlock, err = lock("GPU-1")
	require.NoError(t, err)
	unlock()
}
