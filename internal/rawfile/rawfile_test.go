package rawfile_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/hermetic"
	"tms/internal/rawfile"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, size := range []int{0, 1, 4095, 4096, 4097, 100_000} {
		text := make([]byte, size)
		for i := range text {
			text[i] = byte(i)
		}
		require.NoError(t, os.WriteFile(path, text, 0o600))
		read, err := rawfile.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(text), string(read))
	}
	_, err := rawfile.ReadFile(path + "x")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = rawfile.ReadFile(filepath.Dir(path))
	require.ErrorIs(t, err, unix.EISDIR)
	// What has no size of its own.
	read, err := rawfile.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	require.Contains(t, string(read), fmt.Sprint(os.Getpid()))
}

func TestNames(t *testing.T) {
	directory := t.TempDir()
	names, err := rawfile.Names(directory)
	require.NoError(t, err)
	require.Empty(t, names)
	var made []string
	for i := range 500 { // more than one system call returns
		made = append(made, fmt.Sprintf("a file with a longer name %d", i))
		require.NoError(t, os.WriteFile(filepath.Join(directory, made[i]), nil, 0o600))
	}
	names, err = rawfile.Names(directory)
	require.NoError(t, err)
	require.ElementsMatch(t, made, names)
	_, err = rawfile.Names(filepath.Join(directory, made[0]))
	require.ErrorIs(t, err, unix.ENOTDIR)
}

func TestNothingStaysOpen(t *testing.T) {
	open := func() []string {
		names, err := rawfile.Names("/proc/self/fd")
		require.NoError(t, err)
		return names
	}
	before := open()
	_, err := rawfile.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	_, err = rawfile.ReadFile("/")
	require.Error(t, err)
	require.Len(t, open(), len(before))
}
