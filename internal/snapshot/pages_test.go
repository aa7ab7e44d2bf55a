package snapshot

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
)

const page = 4 << 10

// savePages makes a snapshot whose only process had this private memory, in blocks of these lengths.
func savePages(t *testing.T, d *Directory, name string, memory []byte, lengths []int64) Progress {
	t.Helper()
	w, err := d.Begin(name)
	require.NoError(t, err)
	require.NoError(t, w.commitPages(t, memory, lengths))
	return w.Memory()
}

func (w *Writer) commitPages(t *testing.T, contents []byte, lengths []int64) error {
	content, err := w.AddPages(t.Context(), memory(t, contents), lengths)
	m := &Manifest{Processes: []Process{{PID: 1}}, Pages: []File{{"images/pages-1.img", content}}}
	if err == nil {
		return w.Commit(t.Context(), m)
	}
	require.Error(t, w.Commit(t.Context(), m), "what has a block too few is never complete")
	return err
}

func requirePages(t *testing.T, d *Directory, name string, want []byte) {
	t.Helper()
	s, err := d.Load(name)
	require.NoError(t, err)
	defer s.Close()
	file := memory(t, bytes.Repeat([]byte{0xff}, len(want)+1))
	require.NoError(t, s.Copy(t.Context(), s.Manifest.Pages[0].Content, file))
	got, err := os.ReadFile("/proc/self/fd/" + itoa(int(file.Fd())))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

// blocksOfPages cuts a size, after a first part.
func blocksOfPages(size, first int64) (lengths []int64) {
	for lengths = []int64{first}; first < size; first += lengths[len(lengths)-1] {
		lengths = append(lengths, min(PageBlockSize, size-first))
	}
	return lengths
}

func TestPagesComeBack(t *testing.T) {
	d := newDirectory(t)
	contents := slices.Concat(random(1, 3*page), make([]byte, PageBlockSize), random(2, 4*mib))
	lengths := blocksOfPages(int64(len(contents)), 3*page)
	first := savePages(t, d, "one", contents, lengths)
	require.Equal(t, Progress{Read: int64(len(contents)), Zero: PageBlockSize, Written: 4*mib + 3*page}, first)
	requirePages(t, d, "one", contents)

	// A page more at the beginning moves all that follows in the file, and 1% is another.
	changed := slices.Concat(random(3, 4*page), contents[3*page:])
	copy(changed[mib:], random(4, 40<<10))
	second := savePages(t, d, "two", changed, blocksOfPages(int64(len(changed)), 4*page))
	require.LessOrEqual(t, second.Written, int64(4*page+2*PageBlockSize))
	requirePages(t, d, "one", contents)
	requirePages(t, d, "two", changed)

	list, err := d.List()
	require.NoError(t, err)
	require.Equal(t, int64(len(changed)), list[1].Memory)
	require.Zero(t, list[1].Contents)
	require.Equal(t, first.Written, list[0].Blocks)
	require.Equal(t, second.Written, list[1].Own)
	require.Empty(t, list[1].Problem)

	own := blocksOfOthers(t, d, "two", "one")
	pruned, err := d.Prune(PruneOptions{})
	require.NoError(t, err)
	require.Zero(t, pruned.Blocks)
	spoil(t, own[0])
	damage, read, err := d.Check(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, damage, 1)
	require.Equal(t, own[0], damage[0].Path)
	require.Greater(t, read, first.Written+second.Written-1)
	s, err := d.Load("two")
	require.NoError(t, err)
	defer s.Close()
	err = s.Copy(t.Context(), s.Manifest.Pages[0].Content, memory(t, nil))
	require.ErrorContains(t, err, own[0]+": the block has other bytes")
	require.NoError(t, os.Remove(own[0]))
	_, err = d.Load("two")
	require.ErrorContains(t, err, own[0]+": the block is missing")
	requirePages(t, d, "one", contents)
}

// blocksOfOthers lists the blocks that one snapshot names and another does not.
func blocksOfOthers(t *testing.T, d *Directory, of, not string) (paths []string) {
	t.Helper()
	with, err := d.readManifest(of)
	require.NoError(t, err)
	without, err := d.readManifest(not)
	require.NoError(t, err)
	for _, sum := range with.Pages[0].Blocks {
		if !slices.Contains(without.Pages[0].Blocks, sum) {
			paths = append(paths, d.blockPath(sum))
		}
	}
	require.NotEmpty(t, paths)
	return paths
}

// spoil makes one bit of a file another.
func spoil(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text[len(text)/2] ^= 1
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// Each call that writes a block of private memory fails once, and the disk is full.
func TestEachCallForPagesFails(t *testing.T) {
	contents := random(1, mib)
	for _, call := range []string{"open", "pwrite", "rename"} {
		for nth := 1; ; nth++ {
			d := newDirectory(t)
			savePages(t, d, "before", random(2, PageBlockSize), []int64{PageBlockSize})
			w, err := d.Begin("one")
			require.NoError(t, err)
			left := fullAt(call, nth)
			err = w.commitPages(t, contents, blocksOfPages(mib, PageBlockSize))
			failpoint.Set(nil)
			if left.Load() > 0 {
				require.NoError(t, err)
				require.GreaterOrEqual(t, nth, 16, call)
				requirePages(t, d, "one", contents)
				break
			}
			require.ErrorIs(t, err, unix.ENOSPC)
			w.Abort()
			require.Len(t, blocks(t, d), 1, "an abort takes away what it has written")
			requirePages(t, d, "", random(2, PageBlockSize))
		}
	}
}

// What was written before there were blocks of pages is read as it was.
func TestVersion1IsRead(t *testing.T) {
	d := newDirectory(t)
	contents := random(1, 3*mib)
	save(t, d, "one", contents)
	m, err := d.readManifest("one")
	require.NoError(t, err)
	m.Version = 1
	require.NoError(t, m.write(d.path+"/one"))
	requireContents(t, d, "one", contents)
}

func TestWrongLengthsAreRefused(t *testing.T) {
	for what, content := range map[string]Content{
		"too few":  {Size: 3 * page, Blocks: make([]Sum, 1), Lengths: []int64{page}},
		"too many": {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{page, page}},
		"none":     {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{page, 0}},
		"negative": {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{2 * page, -page}},
		"large":    {Size: 2 * BlockSize, Blocks: make([]Sum, 1), Lengths: []int64{2 * BlockSize}},
		"unequal":  {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{page}},
	} {
		d := newDirectory(t)
		require.NoError(t, os.Mkdir(d.path+"/one", 0o700))
		require.NoError(t, (&Manifest{Version: Version, Pages: []File{{"pages", content}}}).write(d.path+"/one"))
		_, err := d.Load("one")
		require.ErrorContains(t, err, "the list of blocks has another length", what)
	}
}
