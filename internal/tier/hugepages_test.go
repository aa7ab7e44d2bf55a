package tier

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A file outlives its directory, and has huge pages where the process may mount; elsewhere there is a file all the same.
func TestMemoryFiles(t *testing.T) {
	for _, directory := range []int{hugePages(), -1} {
		file, err := memoryFile(directory)
		require.NoError(t, err)
		if directory >= 0 {
			require.NoError(t, unix.Close(directory))
		}
		written, err := unix.Pwrite(file, []byte("contents"), 3<<20)
		require.NoError(t, err)
		require.Equal(t, 8, written)
		read := make([]byte, 8)
		_, err = unix.Pread(file, read, 3<<20)
		require.NoError(t, err)
		require.Equal(t, "contents", string(read))
		var status unix.Stat_t
		require.NoError(t, unix.Fstat(file, &status))
		require.Zero(t, status.Nlink)
		if directory >= 0 {
			require.Greater(t, int(status.Blksize), os.Getpagesize())
		}
		require.NoError(t, unix.Close(file))
	}
}
