package tree

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/snapshot"
)

// What a process has mapped is the same or not: by its build ID, by its hash, or by that of parts of a large file.
func TestMappedFilesAreTheSame(t *testing.T) {
	list, err := mapped([]snapshot.Process{{PID: os.Getpid()}})
	require.NoError(t, err)
	require.NotEmpty(t, list)
	require.NoError(t, lackedFiles(list))
	own, err := os.Executable()
	require.NoError(t, err)
	require.Contains(t, paths(list), own)

	large := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(large, bytes.Repeat([]byte{1}, wholly+partSize), 0o600))
	is, err := identify(large)
	require.NoError(t, err)
	require.Contains(t, is.ID, "sha256-of-parts:")
	is.Path = large
	file, err := os.OpenFile(large, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{2}, is.Size-1)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.ErrorContains(t, lackedFiles([]snapshot.Mapped{is}), large+" is another one than at the snapshot")
	require.NoError(t, os.Remove(large))
	require.ErrorContains(t, lackedFiles([]snapshot.Mapped{is}), large+" is missing")
}

func paths(list []snapshot.Mapped) (paths []string) {
	for _, m := range list {
		paths = append(paths, m.Path)
	}
	return paths
}
