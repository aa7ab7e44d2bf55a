package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/snapshot"
	"tms/internal/snapshot/tree"
)

// bytesIn adds up the sizes of all files below a folder.
func bytesIn(t *testing.T, folder string) (bytes int64) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return err
	}))
	return bytes
}

// A second snapshot, with 1% of the program's host memory changed, adds at most 3% of what the first one has taken. Both
// come back, also when the first one is in the form of earlier versions.
func TestASecondSnapshotSharesHostMemory(t *testing.T) {
	hermetic.Thorough(t)
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	s, directory := startWarm(t)
	s.do("numbers 256")
	sums := []string{s.do("sum")}
	first := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--force", "--json"))
	require.Greater(t, first.Memory.Written, int64(256<<20))
	size := bytesIn(t, directory)
	s.do("draw")
	sums = append(sums, s.do("sum"))
	second := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--force", "--stop", "--json"))
	require.Error(t, s.Wait())
	added := bytesIn(t, directory) - size
	t.Logf("%d and %d bytes: %.2f%%; %+v, %+v", size, added, 100*float64(added)/float64(size), first, second)
	require.LessOrEqual(t, added, size*3/100)
	require.Empty(t, snapshotFiles(t, directory, second.Name, "images", "pages-*.img"))
	require.Less(t, len(snapshotFiles(t, directory, "blocks", "*", "*")), 100, "blocks of host memory are no files")
	require.Contains(t, succeeds(t, "snapshots", "check", directory), "are as they were written")

	for i, name := range []string{first.Name, second.Name} {
		again, _ := s.restored(t, directory, "--name", name)
		again.do("check")
		require.Equal(t, sums[i], again.do("sum"))
		require.NoError(t, again.Process.Kill())
		awaitEnd(t, again.Process.Pid)
	}
	asVersion1(t, directory, first.Name)
	require.Contains(t, succeeds(t, "snapshots", "prune", directory), " of blocks removed")
	require.Contains(t, succeeds(t, "snapshots", "check", directory), "are as they were written")
	again, _ := s.restored(t, directory, "--name", first.Name)
	again.do("check")
	require.Equal(t, sums[0], again.do("sum"))
}

// Where tms gets no folder in memory, CRIU's files of pages stay whole, and such a snapshot is restored, as often as one
// wants. A snapshot from elsewhere is refused with words.
func TestSnapshotsWithoutAFolderInMemory(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	s, directory := startWarm(t)
	said, _ := steppedRun(t, steppedCommand("folder", "fail", "snapshot", s.number(), directory, "--force"))
	require.Contains(t, said, "the program stood still for")
	whole := complete(t, directory)[0]
	require.NotEmpty(t, snapshotFiles(t, directory, whole, "images", "pages-*.img"))
	require.Contains(t, said, "so CRIU wrote to the disk while the program stood still, and the snapshot does not share")
	// Where memory is short for the time of the dump, CRIU writes to the disk, and all else is as it is elsewhere.
	said, _ = steppedRun(t, steppedCommand("room", "fail", "snapshot", s.number(), directory, "--force"))
	require.Contains(t, said, "tms: the test fails this step, so CRIU wrote to the disk while the program stood still\n")
	names := complete(t, directory)
	short := names[len(names)-1]
	require.Empty(t, snapshotFiles(t, directory, short, "images", "pages-*.img"))
	succeeds(t, "snapshot", s.number(), directory, "--force", "--stop")
	require.Error(t, s.Wait())
	said, _ = steppedRun(t, steppedCommand("folder", "fail", "restore", directory))
	require.Contains(t, said, "the test fails this step. It needs Linux 5.2 or later")
	for _, name := range []string{whole, short, whole} {
		again, _ := s.restored(t, directory, "--name", name)
		again.do("check")
		require.NoError(t, again.Process.Kill())
		awaitEnd(t, again.Process.Pid)
	}
	require.Contains(t, succeeds(t, "snapshots", "check", directory), "are as they were written")
}

func snapshotFiles(t *testing.T, parts ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(parts...))
	require.NoError(t, err)
	return found
}

// asVersion1 brings a snapshot into the form of version 1, in which CRIU's files of pages are in its folder.
func asVersion1(t *testing.T, directory, name string) {
	t.Helper()
	d, err := snapshot.Open(directory)
	require.NoError(t, err)
	s, err := d.Load(name)
	require.NoError(t, err)
	defer s.Close()
	m := s.Manifest
	require.Equal(t, 3, m.Version)
	require.NotEmpty(t, m.Pages)
	for _, pages := range m.Pages {
		path := filepath.Join(s.Folder(), pages.Path)
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		require.NoError(t, err)
		require.NoError(t, s.Copy(t.Context(), pages.Content, file))
		require.NoError(t, file.Close())
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		whole := snapshot.Content{Size: pages.Size}
		for at := 0; at < len(text); at += snapshot.BlockSize {
			whole.Blocks = append(whole.Blocks, sha256.Sum256(text[at:min(at+snapshot.BlockSize, len(text))]))
		}
		m.Files = append(m.Files, snapshot.File{Path: pages.Path, Content: whole})
	}
	m.Version, m.Pages, m.Packs = 1, nil, nil
	text, err := json.Marshal(m)
	require.NoError(t, err)
	sum := sha256.Sum256(text)
	require.NoError(t, os.WriteFile(filepath.Join(s.Folder(), "snapshot.json"), text, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(s.Folder(), "snapshot.sha256"),
		[]byte(hex.EncodeToString(sum[:])+"  snapshot.json\n"), 0o600))
}
