package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
)

const (
	mib      = 1 << 20
	writesIn = "SNAPSHOT_WRITES_IN" // the directory in which a child of a test writes until it is killed
)

func newDirectory(t *testing.T) *Directory {
	t.Helper()
	d, err := Create(filepath.Join(t.TempDir(), "snapshots"))
	require.NoError(t, err)
	return d
}

// memory returns a file without a name that has bytes.
func memory(t *testing.T, contents []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("contents", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), "contents")
	t.Cleanup(func() { _ = file.Close() })
	_, err = file.WriteAt(contents, 0)
	require.NoError(t, err)
	return file
}

func random(seed uint64, size int) []byte {
	contents := make([]byte, size)
	source := rand.NewPCG(seed, 0)
	for i := 0; i+8 <= size; i += 8 {
		word := source.Uint64()
		for k := range 8 {
			contents[i+k] = byte(word >> (8 * k))
		}
	}
	return contents
}

func addTo(t *testing.T, w *Writer, contents []byte) Content {
	t.Helper()
	content, err := w.Add(t.Context(), memory(t, contents), int64(len(contents)))
	require.NoError(t, err)
	return content
}

// save makes a snapshot of one process, whose files have these contents.
func save(t *testing.T, d *Directory, name string, files ...[]byte) Progress {
	t.Helper()
	w, err := d.Begin(name)
	require.NoError(t, err)
	process := Process{PID: 1, Command: []string{"program"}}
	for i, contents := range files {
		process.Contents = append(process.Contents, Held{uint64(i + 1), addTo(t, w, contents)})
	}
	require.NoError(t, os.WriteFile(filepath.Join(w.Folder(), "images"), bytes.Repeat([]byte(name), mib), 0o600))
	require.NoError(t, w.Commit(t.Context(), &Manifest{Processes: []Process{process}}))
	return w.Progress()
}

func requireContents(t *testing.T, d *Directory, name string, files ...[]byte) {
	t.Helper()
	s, err := d.Load(name)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.VerifyFiles(t.Context()))
	held := s.Manifest.Processes[0].Contents
	require.Len(t, held, len(files))
	for i, want := range files {
		file := memory(t, bytes.Repeat([]byte{0xff}, len(want)+1)) // what it had before is gone
		require.NoError(t, s.Copy(t.Context(), held[i].Content, file))
		got, err := os.ReadFile("/proc/self/fd/" + itoa(int(file.Fd())))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "file %d", i)
	}
}

func itoa(n int) string { text, _ := json.Marshal(n); return string(text) }

// blocks lists the files below DIR/blocks.
func blocks(t *testing.T, d *Directory) (paths []string) {
	t.Helper()
	collect := func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			paths = append(paths, path)
		}
		return err
	}
	require.NoError(t, filepath.Walk(filepath.Join(d.path, blocksName), collect))
	return paths
}

func TestContentsComeBack(t *testing.T) {
	d := newDirectory(t)
	files := [][]byte{
		random(1, 5*mib),              // whose last block is not whole
		random(2, 3*mib+4096),         // of O_DIRECT's blocks
		random(3, mib+5),              // of bytes
		make([]byte, 4*mib),           // zeros
		{},                            // nothing
		append(random(1, 2*mib), 'x'), // whose first block is that of the first file
	}
	wrote := save(t, d, "one", files...)
	require.Len(t, blocks(t, d), 7)
	require.Equal(t, int64(4*mib), wrote.Zero)
	require.Equal(t, int64(2*mib), wrote.Shared)
	requireContents(t, d, "", files...)

	for _, path := range blocks(t, d) { // sha256sum would say so, too
		block, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, Sum(sha256.Sum256(block)).String(), filepath.Base(path))
	}
	sums := exec.Command("sha256sum", "--check", "--strict", sumName)
	sums.Dir = filepath.Join(d.path, "one")
	require.NoError(t, sums.Run())
	info, err := os.Stat(d.path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestASecondSnapshotWritesWhatHasChanged(t *testing.T) {
	d := newDirectory(t)
	contents := random(1, 68*mib)
	first := save(t, d, "one", contents)
	require.Equal(t, int64(len(contents)), first.Written)
	changed := bytes.Clone(contents)
	copy(changed[30*mib:], random(2, 68*mib/100)) // 1%
	second := save(t, d, "two", changed)
	require.LessOrEqual(t, second.Written, int64(len(contents))*3/100)
	requireContents(t, d, "one", contents)
	requireContents(t, d, "two", changed)
	list, err := d.List()
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, entry := range list {
		require.Equal(t, int64(len(contents)), entry.Blocks)
		require.Equal(t, int64(2*mib), entry.Own)
		require.Empty(t, entry.Problem)
	}
}

func TestHolesTakeNothing(t *testing.T) {
	d := newDirectory(t)
	file := memory(t, nil)
	require.NoError(t, file.Truncate(1<<40))
	_, err := file.WriteAt([]byte("x"), 1<<39)
	require.NoError(t, err)
	w, err := d.Begin("one")
	require.NoError(t, err)
	content, err := w.Add(t.Context(), file, 1<<32)
	require.NoError(t, err)
	require.Zero(t, content.Bytes())
	content, err = w.Add(t.Context(), memory(t, make([]byte, mib)), mib)
	require.NoError(t, err)
	require.Zero(t, content.Bytes())
	require.Zero(t, w.Progress().Written)
	w.Abort()
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	for name, fault := range map[string]struct {
		spoil func(t *testing.T, path string)
		words string
		loads bool // only reading finds it
	}{
		"a block is missing": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
		}, "missing", false},
		"a block is too short": {func(t *testing.T, path string) {
			require.NoError(t, os.Truncate(path, mib))
		}, "too short", false},
		"a bit is wrong": {func(t *testing.T, path string) {
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			one := make([]byte, 1)
			_, err = file.ReadAt(one, mib)
			require.NoError(t, err)
			one[0] ^= 1
			_, err = file.WriteAt(one, mib)
			require.NoError(t, err)
			require.NoError(t, file.Close())
		}, "other bytes than its hash says", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDirectory(t)
			contents, other := random(1, 8*mib), random(2, 2*mib)
			save(t, d, "one", contents)
			save(t, d, "two", other)
			bad := d.blockPath(sha256.Sum256(contents[2*mib : 4*mib]))
			fault.spoil(t, bad)
			damage, _, err := d.Check(t.Context(), "")
			require.NoError(t, err)
			require.Len(t, damage, 1)
			require.Equal(t, "one", damage[0].Snapshot)
			require.Equal(t, bad, damage[0].Path)
			require.Contains(t, damage[0].What, fault.words)
			s, err := d.Load("one")
			if fault.loads {
				require.NoError(t, err)
				defer s.Close()
				err = s.Copy(t.Context(), s.Manifest.Processes[0].Contents[0].Content, memory(t, nil))
			}
			var found *Damage
			require.ErrorAs(t, err, &found)
			require.Equal(t, damage[0], found)
			requireContents(t, d, "two", other)
			save(t, d, "three", contents) // a block that is known to be wrong is written once more
			if !fault.loads {
				requireContents(t, d, "one", contents)
			}
		})
	}
}

func TestSpoiledFiles(t *testing.T) {
	d := newDirectory(t)
	save(t, d, "one", random(1, mib))
	images := filepath.Join(d.path, "one", "images")
	text, err := os.ReadFile(images)
	require.NoError(t, err)
	text[len(text)-1] ^= 1
	require.NoError(t, os.WriteFile(images, text, 0o600))
	s, err := d.Load("one")
	require.NoError(t, err)
	require.ErrorContains(t, s.VerifyFiles(t.Context()), "other bytes than it had, from 2097152 on")
	s.Close()
	damage, _, err := d.Check(t.Context(), "one")
	require.NoError(t, err)
	require.Len(t, damage, 1)
	require.NoError(t, os.Truncate(images, 1))
	_, err = d.Load("")
	require.ErrorContains(t, err, "has 1 bytes, and had 3145728")
	require.NoError(t, os.Remove(images))
	_, err = d.Load("")
	require.ErrorContains(t, err, "missing")

	manifest := filepath.Join(d.path, "one", manifestName)
	text, err = os.ReadFile(manifest)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(manifest, bytes.Replace(text, []byte(`"pid":1`), []byte(`"pid":2`), 1), 0o600))
	_, err = d.Load("")
	require.ErrorContains(t, err, "not what was written")
	_, err = d.Prune(PruneOptions{})
	require.ErrorContains(t, err, "no block was removed")
	require.Len(t, blocks(t, d), 1)
	list, err := d.List()
	require.NoError(t, err)
	require.Contains(t, list[0].Problem, "not what was written")
}

func TestALaterVersionIsRefused(t *testing.T) {
	d := newDirectory(t)
	folder := filepath.Join(d.path, "one")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, (&Manifest{Version: Version + 1, Tms: "99.0"}).write(folder))
	_, err := d.Load("one")
	require.ErrorContains(t, err, "a later tms (99.0) has written it")
	require.NoError(t, (&Manifest{Version: Version, Files: []File{{Path: "../../etc/passwd"}}}).write(folder))
	_, err = d.Load("one")
	require.ErrorContains(t, err, "entry of \"../../etc/passwd\" is wrong")
}

// fullAt has the disk be full at the nth call, and counts the calls until then.
func fullAt(call string, nth int) (left *atomic.Int64) {
	left = new(atomic.Int64)
	left.Store(int64(nth))
	failpoint.Set(func(name string) error {
		if name == call && left.Add(-1) == 0 {
			return unix.ENOSPC
		}
		return nil
	})
	return left
}

// TestEachCallFails makes each call of a snapshot fail once, and the disk full.
func TestEachCallFails(t *testing.T) {
	contents := random(1, 4*mib)
	for _, call := range []string{"open", "pwrite", "rename", "fsync", "syncfs"} {
		for nth := 1; ; nth++ {
			d := newDirectory(t)
			save(t, d, "before", random(2, 2*mib))
			left := fullAt(call, nth)
			w, err := d.Begin("one")
			require.NoError(t, err)
			content, err := w.Add(t.Context(), memory(t, contents), int64(len(contents)))
			m := &Manifest{Processes: []Process{{Contents: []Held{{1, content}}}}}
			if err == nil {
				err = w.Commit(t.Context(), m)
			} else {
				require.Error(t, w.Commit(t.Context(), m), "what has a block too few is never complete")
			}
			failpoint.Set(nil)
			if left.Load() > 0 {
				require.NoError(t, err)
				require.Greater(t, nth, 1, "%s was not called", call)
				requireContents(t, d, "one", contents)
				break
			}
			require.ErrorIs(t, err, unix.ENOSPC, "%s %d", call, nth)
			require.ErrorContains(t, err, "tms snapshots prune", "%s %d", call, nth)
			w.Abort()
			require.Len(t, blocks(t, d), 1, "an abort takes away what it has written")
			list, err := d.List()
			require.NoError(t, err)
			require.Len(t, list, 1)
			requireContents(t, d, "", random(2, 2*mib))
		}
	}
}

func TestTwoWritersAtOnce(t *testing.T) {
	d := newDirectory(t)
	common, first, second := random(1, 40*mib), random(2, 8*mib), random(3, 8*mib)
	var running sync.WaitGroup
	for name, own := range map[string][]byte{"one": first, "two": second} {
		w, err := d.Begin(name)
		require.NoError(t, err)
		files := []*os.File{memory(t, common), memory(t, own)}
		running.Go(func() {
			var held []Held
			for i, file := range files {
				info, err := file.Stat()
				if err != nil {
					t.Error(err)
					return
				}
				content, err := w.Add(context.Background(), file, info.Size())
				if err != nil {
					t.Error(err)
				}
				held = append(held, Held{uint64(i), content})
			}
			if err := w.Commit(context.Background(), &Manifest{Processes: []Process{{Contents: held}}}); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	require.Len(t, blocks(t, d), 28)
	requireFiles := func(name string, own []byte) {
		s, err := d.Load(name)
		require.NoError(t, err)
		defer s.Close()
		for i, want := range [][]byte{common, own} {
			file := memory(t, nil)
			require.NoError(t, s.Copy(t.Context(), s.Manifest.Processes[0].Contents[i].Content, file))
			got := make([]byte, len(want))
			_, err := file.ReadAt(got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		}
	}
	requireFiles("one", first)
	requireFiles("two", second)
	_, err := d.Begin("one")
	require.ErrorContains(t, err, "already")
}

func TestPrune(t *testing.T) {
	d := newDirectory(t)
	one, two := random(1, 6*mib), append(random(1, 4*mib), random(2, 2*mib)...)
	save(t, d, "one", one)
	save(t, d, "two", two)
	w, err := d.Begin("three")
	require.NoError(t, err)
	addTo(t, w, random(3, 2*mib))
	_, err = d.Prune(PruneOptions{})
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, w.lock.Close()) // as the end of its process does
	s, err := d.Load("one")
	require.NoError(t, err)
	_, err = d.Prune(PruneOptions{})
	require.ErrorIs(t, err, ErrInUse)
	s.Close()

	require.NoError(t, os.WriteFile(filepath.Join(d.path, blocksName, "readme"), nil, 0o600)) // is not a block
	require.NoError(t, os.WriteFile(d.blockPath(sha256.Sum256(one[:2*mib]))+".1.2", nil, 0o600))
	would, err := d.Prune(PruneOptions{DryRun: true, Keep: 1})
	require.NoError(t, err)
	require.Equal(t, &Pruned{Snapshots: []string{"one"}, Incomplete: []string{"three.partial"}, Blocks: 3, Bytes: 4 * mib},
		would)
	requireContents(t, d, "one", one)
	did, err := d.Prune(PruneOptions{})
	require.NoError(t, err)
	require.Equal(t, int64(2*mib), did.Bytes)
	requireContents(t, d, "one", one)
	did, err = d.Prune(PruneOptions{Keep: 1})
	require.NoError(t, err)
	require.Equal(t, &Pruned{Snapshots: []string{"one"}, Incomplete: []string{}, Blocks: 1, Bytes: 2 * mib}, did)
	requireContents(t, d, "two", two)
	require.Len(t, blocks(t, d), 4) // and what is not a block
}

// TestWhatACrashLeaves has a block which no snapshot names, and which is not what its name says.
func TestWhatACrashLeaves(t *testing.T) {
	d := newDirectory(t)
	contents := random(1, 2*mib)
	path := d.blockPath(sha256.Sum256(contents))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, make([]byte, 2*mib), 0o600))
	require.Equal(t, int64(2*mib), save(t, d, "one", contents).Written)
	requireContents(t, d, "one", contents)
}

func TestAKilledWriter(t *testing.T) {
	if folder := os.Getenv(writesIn); folder != "" {
		d, err := Create(folder)
		require.NoError(t, err)
		w, err := d.Begin("killed")
		require.NoError(t, err)
		addTo(t, w, random(1, 8*mib))
		_, err = w.AddPages(t.Context(), memory(t, random(2, mib)), blocksOfPages(mib, PageBlockSize))
		require.NoError(t, err)
		failpoint.Set(func(call string) error {
			if call == "rename" {
				require.NoError(t, unix.Kill(os.Getpid(), unix.SIGKILL))
			}
			return nil
		})
		_ = w.Commit(t.Context(), &Manifest{})
		t.Fatal("it was not killed")
	}
	d := newDirectory(t)
	child := exec.Command(os.Args[0], "-test.run=^TestAKilledWriter$")
	child.Env = append(os.Environ(), writesIn+"="+d.path)
	require.ErrorContains(t, child.Run(), "killed")
	require.Len(t, blocks(t, d), 5)
	_, err := d.Load("")
	require.ErrorContains(t, err, "what was begun (killed.partial) is not complete")
	list, err := d.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Contains(t, list[0].Problem, "not complete")
	save(t, d, "next", random(1, 8*mib))
	require.Equal(t, int64(mib), savePages(t, d, "pages", random(2, mib), blocksOfPages(mib, PageBlockSize)).Written,
		"a pack of no complete snapshot is not relied on")
	pruned, err := d.Prune(PruneOptions{})
	require.NoError(t, err)
	require.Equal(t, &Pruned{Snapshots: []string{}, Incomplete: []string{"killed.partial"}, Blocks: 1, Bytes: mib}, pruned)
	requireContents(t, d, "next", random(1, 8*mib))
	requirePages(t, d, "pages", random(2, mib))
}

func TestWhereSnapshotsMayLie(t *testing.T) {
	home := t.TempDir()
	_, err := Open(home)
	require.ErrorContains(t, err, "has no snapshots")
	_, err = Open(filepath.Join(home, "gone"))
	require.ErrorContains(t, err, "no such file or directory")
	require.NoError(t, os.WriteFile(filepath.Join(home, "notes"), nil, 0o600))
	_, err = Create(home)
	require.ErrorContains(t, err, "has other files (notes)")
	d := newDirectory(t)
	require.NoError(t, os.Chmod(d.path, 0o770))
	_, err = Open(d.path)
	require.ErrorContains(t, err, "chmod go-w")
	require.NoError(t, os.Chmod(d.path, 0o700))
	for _, name := range []string{"", ".", "..", "a/b", "blocks", "lock", ".hidden", "x.partial"} {
		_, err := d.Begin(name)
		require.ErrorContains(t, err, "cannot be the name", name)
	}
	_, err = d.Load("../../etc")
	require.ErrorContains(t, err, "cannot be the name")
	_, err = d.Load("none")
	require.ErrorContains(t, err, "has no snapshot none")
	if hermetic.HasOtherUsers() {
		require.NoError(t, os.Chown(d.path, 1, 1))
		_, err = Open(d.path)
		require.ErrorContains(t, err, "belongs to user 1")
	}
}

func TestContentsThatEndTooSoon(t *testing.T) {
	d := newDirectory(t)
	w, err := d.Begin("one")
	require.NoError(t, err)
	_, err = w.Add(t.Context(), memory(t, random(1, mib)), mib+1)
	require.ErrorContains(t, err, "reading contents")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Add(ended, memory(t, random(1, mib)), mib)
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, w.Commit(t.Context(), &Manifest{}))
	w.Abort()
	require.Empty(t, blocks(t, d))
}

func TestSums(t *testing.T) {
	for _, text := range []string{`"x"`, `"` + strings.Repeat("0", 63) + `"`, `"` + strings.Repeat("0", 66) + `"`} {
		require.ErrorContains(t, json.Unmarshal([]byte(text), new(Sum)), "is not the SHA-256 of a block")
	}
}
