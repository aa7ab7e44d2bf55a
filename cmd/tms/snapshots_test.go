package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/snapshot"
)

// snapshotsIn makes a directory with snapshots, of which each has a block of its own and shares one.
func snapshotsIn(t *testing.T, names ...string) (directory string) {
	t.Helper()
	d, err := snapshot.Create(filepath.Join(t.TempDir(), "snapshots"))
	require.NoError(t, err)
	for i, name := range names {
		file, err := snapshot.NewMemory(3 * snapshot.BlockSize)
		require.NoError(t, err)
		own := bytes.Repeat([]byte{byte(i + 1)}, snapshot.BlockSize)
		for at, block := range [][]byte{bytes.Repeat([]byte("shared"), snapshot.BlockSize/6), own} {
			_, err = file.WriteAt(block, int64(at)*snapshot.BlockSize)
			require.NoError(t, err)
		}
		w, err := d.Begin(name)
		require.NoError(t, err)
		content, err := w.Add(t.Context(), file, 3*snapshot.BlockSize)
		require.NoError(t, err)
		pages, err := w.AddPages(t.Context(), file, []int64{4096, snapshot.PageBlockSize})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(w.Folder(), "core"), []byte("image"), 0o600))
		require.NoError(t, w.Commit(t.Context(), &snapshot.Manifest{
			Pages: []snapshot.File{{Path: "pages", Content: pages}},
			Processes: []snapshot.Process{
				{PID: 7, Command: []string{"python", "train.py"}, Contents: []snapshot.Held{{Number: 1, Content: content}}},
				{PID: 8, Parent: 7, Command: []string{"worker"}},
			},
			Needs: snapshot.Needs{Driver: "580.1", GPUs: []snapshot.GPU{{Model: "A"}, {Model: "A"}, {Model: "B"}}, CRIU: "4.2"},
		}))
		require.NoError(t, file.Close())
	}
	return d.Path()
}

func TestSnapshots(t *testing.T) {
	directory := snapshotsIn(t, "one", "two")
	shown := succeeds(t, "snapshots", directory, "--needs")
	require.Regexp(t, `one +\d+s +6.00 MiB +68.0 KiB +4.07 MiB +2.00 MiB +5 +python train.py and 1 more`, shown)
	require.Contains(t, shown, "two needs 2 A, 1 B, driver 580.1, CRIU 4.2\n")
	list := parsed[[]snapshot.Listed](t, succeeds(t, "snapshots", directory, "--json"))
	require.Len(t, list, 2)
	require.Equal(t, directory, list[0].Directory)
	require.Equal(t, "one", list[0].Name)
	require.Equal(t, []snapshot.ListedProcess{
		{PID: 7, Command: []string{"python", "train.py"}, Contents: 6 << 20},
		{PID: 8, Parent: 7, Command: []string{"worker"}},
	}, list[0].Processes)
	only := parsed[[]snapshot.Listed](t, succeeds(t, "snapshots", filepath.Join(directory, "two"), "--json"))
	require.Equal(t, list[1:], only)
	require.Regexp(t, `^6\.07 MiB are as they were written`, succeeds(t, "snapshots", "check", directory))

	// One is given up, and a block of the other is spoiled.
	require.Contains(t, succeeds(t, "snapshots", "prune", directory, "--keep", "1", "--dry-run"),
		"one: would be removed\n2.00 MiB of blocks would be removed\n")
	require.NoError(t, os.RemoveAll(filepath.Join(directory, "one")))
	pruned := parsed[snapshotPrune](t, succeeds(t, "snapshots", "prune", directory, "--json"))
	require.Equal(t, 1, pruned.Blocks)
	require.Empty(t, pruned.Snapshots)
	blocks, err := filepath.Glob(filepath.Join(directory, "blocks", "*", "*"))
	require.NoError(t, err)
	require.Len(t, blocks, 3)
	blocks = slices.DeleteFunc(blocks, func(path string) bool { // those of host memory
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Size() < snapshot.BlockSize
	})
	require.NoError(t, os.Truncate(blocks[0], 4096))
	fails(t, exitNo, "snapshot two cannot be restored: "+blocks[0]+": the block is too short", "snapshots", "check",
		directory)
	stdout, _, code := command(t, "snapshots", "check", directory, "two", "--json")
	require.Equal(t, exitNo, code)
	require.Equal(t, blocks[0], parsed[snapshotCheck](t, stdout).Damage[0].Path)
	_, stderr, code := command(t, "snapshots", directory)
	require.Zero(t, code)
	require.Contains(t, stderr, "two: snapshot two cannot be restored")
}

func TestSnapshotsThatAreNotThere(t *testing.T) {
	directory := snapshotsIn(t, "one")
	for words, line := range map[string][]string{
		"no such file or directory":                {"snapshots", "/gone"},
		"has no snapshots":                         {"snapshots", t.TempDir()},
		"has no snapshot none":                     {"snapshots", directory, "none"},
		"cannot be the name":                       {"snapshots", "check", directory, ".."},
		"--keep takes a number from 1 on":          {"snapshots", "prune", directory, "--keep", "0"},
		"one is one snapshot: name its directory,": {"snapshots", "prune", filepath.Join(directory, "one")},
		"leave two out":                            {"snapshots", filepath.Join(directory, "one"), "two"},
	} {
		fails(t, exitUsage, words, line...)
	}
	d, err := snapshot.Open(directory)
	require.NoError(t, err)
	s, err := d.Load("")
	require.NoError(t, err)
	defer s.Close()
	fails(t, exitNo, "a snapshot is being made or restored there", "snapshots", "prune", directory)
}
