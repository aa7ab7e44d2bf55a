package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/group"
	numbering "tms/internal/machine/process"
)

// lockHeld starts a program that has the lock of a device.
func lockHeld(t *testing.T, uuid string) *hermetic.Holder {
	t.Helper()
	unlock, err := group.Lock(uuid) // which makes the file
	require.NoError(t, err)
	unlock()
	directory, err := control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
	require.NoError(t, err)
	return hermetic.Hold(t, exec.Command("flock", filepath.Join(directory, uuid+".lock"), "sh", "-c", "echo; exec cat"))
}

// canLock reports whether a file could be locked now.
func canLock(t *testing.T, path string) bool {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// A process that is stopped while it has the lock of a device holds others up for a time, and they name it.
func TestLockOfAStoppedHolder(t *testing.T) {
	ownSockets(t)
	defer func(before time.Duration) { numbering.Patience = before }(numbering.Patience)
	numbering.Patience = 50 * time.Millisecond
	holder := lockHeld(t, "GPU-1")

	failed := make(chan error)
	go func() {
		_, err := group.Lock("GPU-1")
		failed <- err
	}()
	select {
	case err := <-failed:
		require.NoError(t, err, "the holder works")
	case <-time.After(10 * numbering.Patience):
	}

	holder.Signal(unix.SIGSTOP)
	err := <-failed
	require.ErrorContains(t, err, "the lock of GPU-1 is held by process")
	require.ErrorContains(t, err, "(flock), which is stopped")

	holder.Signal(unix.SIGCONT)
	holder.End()
	unlock, err := group.Lock("GPU-1")
	require.NoError(t, err)
	unlock()
}

// Root's commands and those of another user take turns: root takes the lock in the user's directory, too, and what it
// makes there is the user's. It follows nothing that the user has put there in place of a directory or a file.
func TestRootTakesTheLocksOfUsers(t *testing.T) {
	hermetic.OtherUsers(t)
	ownSockets(t)
	made := func(user int) string {
		path := filepath.Join(os.Getenv("TMPDIR"), fmt.Sprint("tms-", user))
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chown(path, user, user))
		return path
	}
	file := filepath.Join(made(4242), "GPU-1.lock")
	require.NoError(t, os.Symlink(filepath.Dir(file), filepath.Join(os.Getenv("TMPDIR"), "tms-4243")))
	target := filepath.Join(t.TempDir(), "target")
	require.NoError(t, os.Symlink(target, filepath.Join(made(4244), "GPU-1.lock")))
	require.NoError(t, os.Mkdir(filepath.Join(os.Getenv("TMPDIR"), "tms-4245"), 0o700)) // is not its user's
	unlock, err := group.Lock("GPU-1")
	require.NoError(t, err)
	require.False(t, canLock(t, file))
	unlock()
	require.True(t, canLock(t, file))
	var found unix.Stat_t
	require.NoError(t, unix.Stat(file, &found))
	require.EqualValues(t, 4242, found.Uid)
	require.NoFileExists(t, target)
	require.NoFileExists(t, filepath.Join(os.Getenv("TMPDIR"), "tms-4245", "GPU-1.lock"))
}

// Without a place for the lock nothing is restored, and the process stays as it is.
func TestAResumeWithoutAPlaceForTheLock(t *testing.T) {
	w := startWhole(t)
	w.pause()
	for _, directory := range control.AllDirectories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid()) {
		if _, err := os.Stat(directory); err == nil {
			name := filepath.Join(directory, uuidOf(0)+".lock")
			_ = os.Remove(name)
			require.NoError(t, os.Symlink(name, name))
			defer func() { _ = os.Remove(name) }()
		} else {
			require.NoError(t, os.WriteFile(directory, nil, 0o600))
			defer func() { _ = os.Remove(directory) }()
		}
	}
	w.refused("the lock of "+uuidOf(0)+" cannot be taken: ", "resume", w.number())
	w.requireFree(128)
	for _, directory := range control.AllDirectories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid()) {
		_ = os.Remove(filepath.Join(directory, uuidOf(0)+".lock"))
	}
	w.resumed()
}

// A resume says which stopped process has the lock, and succeeds once that goes on.
func TestAResumeBesideAStoppedHolder(t *testing.T) {
	hermetic.Thorough(t) // a command waits for 5 s
	w := startWhole(t)
	w.pause()
	holder := lockHeld(t, uuidOf(0))
	holder.Signal(unix.SIGSTOP)
	w.refused("(flock), which is stopped: have it go on", "resume", w.number())
	w.requireFree(128)
	holder.Signal(unix.SIGCONT)
	holder.End()
	w.resumed()
}

// Of two resumes of one process the second finds it given back, not the memory gone.
func TestTwoResumesAtOnce(t *testing.T) {
	w := startWhole(t)
	w.pause()
	w.other.do("more 40") // so that the driver's part would not fit twice
	holder := lockHeld(t, uuidOf(0))
	var both [2]*exec.Cmd
	for i := range both {
		both[i] = exec.Command(tms, "resume", w.number())
		require.NoError(t, both[i].Start())
		require.Eventually(t, func() bool { return locked(t, both[i].Process.Pid) }, time.Minute, 5*time.Millisecond)
	}
	holder.End()
	for _, resume := range both {
		require.NoError(t, resume.Wait())
	}
	w.do("check")
	w.requireFree(128 - 72 - 40)
}

// An undo takes memory in its turn, too.
func TestAnUndoWaitsForItsTurn(t *testing.T) {
	w := startWhole(t)
	holder := lockHeld(t, uuidOf(0))
	t.Setenv("CUDASIM_FAIL", "cuCheckpointProcessLock:1:999")
	c := exec.Command(tms, "pause", w.number(), "--everything", "--force")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return locked(t, c.Process.Pid) }, time.Minute, 5*time.Millisecond)
	w.requireFree(88) // paused, and not yet undone
	t.Setenv("CUDASIM_FAIL", "")
	holder.End()
	require.Error(t, c.Wait())
	w.asBefore()
}

// The locks end when a process that takes memory is stopped, because others would wait for it.
func TestTheLocksOfAStoppedProcessEnd(t *testing.T) {
	w := startWhole(t)
	one := group.Alone(w.Process.Pid)
	require.NoError(t, one.Connect(t.Context()))
	defer one.Close()
	directory, err := control.CommonDirectory(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid())
	require.NoError(t, err)
	path := filepath.Join(directory, uuidOf(0)+".lock")
	one.Locked(func() {
		require.False(t, canLock(t, path))
		stop(t, w.Process)
		require.Eventually(t, func() bool { return canLock(t, path) }, time.Minute, 5*time.Millisecond)
		require.NoError(t, w.Process.Signal(unix.SIGCONT))
	})
	require.True(t, canLock(t, path))
}
