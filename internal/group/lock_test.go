package group

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Those who wait for locks share a look at /proc/locks: the kernel stops all locking of files during each. When every
// wait of a command looked by itself, a resume of 300 processes of one device took minutes.
func TestWaitsShareALook(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "device.lock"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	require.Zero(t, lockersOf(file, 0).holder)
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	require.Zero(t, lockersOf(file, time.Hour).holder, "no second look")
	require.Equal(t, os.Getpid(), lockersOf(file, 0).holder)
	require.Equal(t, os.Getpid(), lockersOf(file, time.Hour).holder)
}
