package tree

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/snapshot"
)

const smallShared = 512 << 10

// withSmallShared runs a test where /dev/shm is its own and small, and reports whether this is the process that runs there.
func withSmallShared(t *testing.T) bool {
	t.Helper()
	if os.Getenv("TEST_SMALL_SHARED") != "" {
		return true
	}
	arguments := []string{"--mount"}
	if os.Geteuid() != 0 {
		arguments = append(arguments, "--map-root-user")
	}
	hermetic.Namespaces(t, arguments...)
	within := exec.Command("unshare", append(arguments, "sh", "-c", `mount -t tmpfs -o size=512k tmpfs /dev/shm && exec "$@"`, "sh",
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")...)
	within.Env = append(os.Environ(), "TEST_SMALL_SHARED=1")
	output, err := within.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return false
}

// CRIU's names go though a restore has not come to its end in a full /dev/shm, where not even their list may have room.
func TestAFullSharedMemoryKeepsNoNames(t *testing.T) {
	if !withSmallShared(t) {
		return
	}
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "small"), []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "large"), bytes.Repeat([]byte("x"), 2*smallShared), 0o600))
	name := filepath.Join(sharedMemory, remap+"1")
	all := []snapshot.Shared{{Name: remap + "1", Path: "small", Mode: 0o600}, {Name: "sem.x", Path: "large", Mode: 0o600}}
	err := putListed(folder, all)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, "cannot be put back")
	dropRemaps()
	require.NoFileExists(t, name)

	file, err := os.Create(filepath.Join(sharedMemory, "full"))
	require.NoError(t, err)
	defer file.Close()
	size, err := file.Write(make([]byte, smallShared))
	if err == nil {
		_, err = file.Write([]byte{0})
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, file.Truncate(int64(size-os.Getpagesize())))
	err = putListed(folder, all[:1])
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, "listing CRIU's names")
	require.NoFileExists(t, name)
}

// What others have made in the place of the list of names is not waited for, and is named where it is in the way.
func TestAnotherFileInPlaceOfTheList(t *testing.T) {
	if !withSmallShared(t) {
		return
	}
	require.NoError(t, unix.Mkfifo(remaps, 0o666))
	locked := make(chan error, 1)
	go func() {
		_, unlock, _, err := lockShared(context.Background(), nil)
		if err == nil {
			unlock()
		}
		locked <- err
	}()
	select {
	case err := <-locked:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "the lock waits for a writer of the FIFO")
	}
	name := filepath.Join(sharedMemory, remap+"1")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	all := []snapshot.Shared{{Name: remap + "1"}}
	require.NoError(t, noteRemaps(all)) // a FIFO can be replaced
	dropRemaps()
	require.NoFileExists(t, name)

	require.NoError(t, os.MkdirAll(filepath.Join(remaps, "full"), 0o700))
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	err := noteRemaps(all)
	require.ErrorContains(t, err, remaps+" cannot be replaced")
	require.ErrorContains(t, err, "remove it")
}
