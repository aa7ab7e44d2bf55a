package snapshot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSeal(t *testing.T) {
	file, err := NewMemory(2 * mib)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteAt([]byte("contents"), mib)
	require.NoError(t, err)
	for range 2 {
		sealed, err := Seal(file)
		require.NoError(t, err)
		require.True(t, sealed)
	}
	_, err = file.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, file.Truncate(0), unix.EPERM)
	d := newDirectory(t)
	w, err := d.Begin("one")
	require.NoError(t, err)
	content, err := w.Add(t.Context(), file, 2*mib)
	require.NoError(t, err)
	require.Len(t, content.Blocks, 1)
	w.Abort()

	disk, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer disk.Close()
	sealed, err := Seal(disk)
	require.NoError(t, err)
	require.False(t, sealed)
}
