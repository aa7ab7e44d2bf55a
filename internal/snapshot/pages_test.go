package snapshot

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"unsafe"

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

	require.LessOrEqual(t, len(blocks(t, d)), 6, "a pack for each thread that writes at once")
	pruned, err := d.Prune(PruneOptions{})
	require.NoError(t, err)
	require.Zero(t, pruned.Bytes)
	path, offset := ownBlock(t, d, "two", "one")
	spoil(t, path, offset)
	damage, read, err := d.Check(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, damage, 1)
	require.Equal(t, path, damage[0].Path)
	require.Contains(t, damage[0].What, fmt.Sprintf("bytes from %d on", offset))
	require.Equal(t, read, first.Written+second.Written)
	s, err := d.Load("two")
	require.NoError(t, err)
	defer s.Close()
	err = s.Copy(t.Context(), s.Manifest.Pages[0].Content, memory(t, nil))
	require.ErrorContains(t, err, path+": the block has other bytes")
	require.NoError(t, os.Truncate(path, offset))
	_, err = d.Load("two")
	require.ErrorContains(t, err, path+": the block is too short")
	require.NoError(t, os.Remove(path))
	_, err = d.Load("two")
	require.ErrorContains(t, err, path+": the block is missing")
	damage, _, err = d.Check(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, damage, 1, "a pack that is missing is said once")
	requirePages(t, d, "one", contents)
	written := savePages(t, d, "three", changed, blocksOfPages(int64(len(changed)), 4*page)).Written
	require.Positive(t, written, "a block that is missing is written once more")
	require.LessOrEqual(t, written, second.Written)
	requirePages(t, d, "three", changed)
}

// ownBlock returns where a block is that one snapshot has in a pack and another does not name.
func ownBlock(t *testing.T, d *Directory, of, not string) (path string, offset int64) {
	t.Helper()
	with, err := d.readManifest(of)
	require.NoError(t, err)
	without, err := d.readManifest(not)
	require.NoError(t, err)
	content := with.Pages[0].Content
	i := slices.IndexFunc(content.Blocks, func(sum Sum) bool { return !slices.Contains(without.Pages[0].Blocks, sum) })
	require.GreaterOrEqual(t, i, 0)
	return d.packPath(with.Packs[content.Places[i][0]]), content.Places[i][1]
}

// spoil makes one bit of a file another.
func spoil(t *testing.T, path string, offset int64) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text[offset] ^= 1
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// A prune makes holes where a pack has blocks that no snapshot names, and the others stay. Where it cannot, they stay all.
func TestAPruneMakesHolesInPacks(t *testing.T) {
	inUse := func(d *Directory) (bytes int64) {
		for _, path := range blocks(t, d) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return bytes
	}
	refuses := func(with error) func(*testing.T, string) {
		return func(*testing.T, string) {
			failpoint.Set(func(call string) error {
				if call == "fallocate" {
					return with
				}
				return nil
			})
		}
	}
	for name, keeps := range map[string]func(t *testing.T, pack string){
		"holes":                       nil,
		"a file system without holes": refuses(unix.EOPNOTSUPP),
		"a full disk":                 refuses(unix.ENOSPC),
		"a full quota":                refuses(unix.EDQUOT),
		"a copy by hard links": func(t *testing.T, pack string) {
			require.NoError(t, os.Link(pack, filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(pack))), "link")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDirectory(t)
			contents := random(1, 2*mib)
			savePages(t, d, "one", contents, blocksOfPages(2*mib, PageBlockSize))
			changed := bytes.Clone(contents)
			copy(changed, random(2, PageBlockSize))
			copy(changed[mib:], random(3, 2*PageBlockSize))
			savePages(t, d, "two", changed, blocksOfPages(2*mib, PageBlockSize))
			pack, _ := ownBlock(t, d, "one", "two")
			before := inUse(d)
			require.NoError(t, os.RemoveAll(filepath.Join(d.path, "one")))
			if keeps != nil {
				keeps(t, pack)
				defer failpoint.Set(nil)
			}
			for _, dry := range []bool{true, false} {
				pruned, err := d.Prune(PruneOptions{DryRun: dry})
				require.NoError(t, err)
				if keeps == nil || dry && name != "a copy by hard links" {
					require.Equal(t, &Pruned{Snapshots: []string{}, Incomplete: []string{}, Blocks: 2, Bytes: 3 * PageBlockSize}, pruned)
				} else {
					require.Zero(t, pruned.Bytes)
				}
			}
			requirePages(t, d, "two", changed)
			damage, _, err := d.Check(t.Context(), "")
			require.NoError(t, err)
			require.Empty(t, damage)
			if keeps != nil {
				require.Equal(t, before, inUse(d))
				return
			}
			require.Equal(t, before-3*PageBlockSize, inUse(d))
			pruned, err := d.Prune(PruneOptions{})
			require.NoError(t, err)
			require.Zero(t, pruned.Bytes)
			// A snapshot after it finds what is left, and writes again what is gone.
			require.Equal(t, int64(3*PageBlockSize),
				savePages(t, d, "three", contents, blocksOfPages(2*mib, PageBlockSize)).Written)
			requirePages(t, d, "three", contents)
			for _, gone := range []string{"two", "three"} {
				require.NoError(t, os.RemoveAll(filepath.Join(d.path, gone)))
			}
			pruned, err = d.Prune(PruneOptions{})
			require.NoError(t, err)
			require.Equal(t, int64(2*mib+3*PageBlockSize), pruned.Bytes)
			require.Empty(t, blocks(t, d))
		})
	}
}

// A pack in which nothing is used goes first: its room may be what holes in the others need.
func TestAPruneTakesDeadPacksFirst(t *testing.T) {
	d := newDirectory(t)
	contents := random(1, 2*mib)
	savePages(t, d, "one", contents, blocksOfPages(2*mib, PageBlockSize))
	changed := bytes.Clone(contents)
	copy(changed, random(2, PageBlockSize))
	savePages(t, d, "two", changed, blocksOfPages(2*mib, PageBlockSize))
	savePages(t, d, "zero", random(3, 2*mib), blocksOfPages(2*mib, PageBlockSize))
	dead, _ := ownBlock(t, d, "zero", "two")
	for _, gone := range []string{"one", "zero"} {
		require.NoError(t, os.RemoveAll(filepath.Join(d.path, gone)))
	}
	failpoint.Set(func(call string) error {
		if call == "fallocate" {
			return unix.EIO
		}
		return nil
	})
	defer failpoint.Set(nil)
	_, err := d.Prune(PruneOptions{})
	require.ErrorIs(t, err, unix.EIO)
	require.NoFileExists(t, dead)
	requirePages(t, d, "two", changed)
}

// Two snapshots at once do not share what both write, and a third one finds it. One that has a name again gets other packs.
func TestTwoWritersOfPages(t *testing.T) {
	d := newDirectory(t)
	contents := random(1, 4*mib)
	lengths := blocksOfPages(4*mib, PageBlockSize)
	var all [2]*Writer
	for i := range all {
		var err error
		all[i], err = d.Begin(itoa(i))
		require.NoError(t, err)
	}
	var running sync.WaitGroup
	for _, w := range all {
		running.Go(func() {
			if err := w.commitPages(t, contents, lengths); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	for i, w := range all {
		require.Equal(t, int64(4*mib), w.Memory().Written)
		requirePages(t, d, itoa(i), contents)
	}
	require.Zero(t, savePages(t, d, "2", contents, lengths).Written)
	m, err := d.readManifest("2")
	require.NoError(t, err)
	for _, name := range m.Packs { // those of one of the two
		require.Equal(t, m.Packs[0][:1], name[:1])
	}
	require.NoError(t, os.RemoveAll(filepath.Join(d.path, m.Packs[0][:1])))
	require.Equal(t, int64(2*mib), savePages(t, d, m.Packs[0][:1], random(2, 2*mib), blocksOfPages(2*mib, PageBlockSize)).Written)
	requirePages(t, d, "2", contents)
	damage, _, err := d.Check(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, damage)
}

// Each call that writes a block of private memory fails once, and the disk is full.
func TestEachCallForPagesFails(t *testing.T) {
	contents := random(1, 3*mib)
	for call, least := range map[string]int{"open": 2, "pwrite": 2, "rename": 2} {
		for nth := 1; ; nth++ {
			d := newDirectory(t)
			savePages(t, d, "before", random(2, PageBlockSize), []int64{PageBlockSize})
			w, err := d.Begin("one")
			require.NoError(t, err)
			left := fullAt(call, nth)
			err = w.commitPages(t, contents, blocksOfPages(3*mib, PageBlockSize))
			failpoint.Set(nil)
			if left.Load() > 0 {
				require.NoError(t, err)
				require.GreaterOrEqual(t, nth, least, call)
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

// What was written in earlier forms is read as it was: without blocks of pages, and with each as a file of its own.
func TestEarlierVersionsAreRead(t *testing.T) {
	d := newDirectory(t)
	contents := random(1, 3*mib)
	save(t, d, "one", contents)
	m, err := d.readManifest("one")
	require.NoError(t, err)
	m.Version = 1
	require.NoError(t, m.write(d.path+"/one"))
	requireContents(t, d, "one", contents)

	lengths := blocksOfPages(3*mib, 3*page)
	savePages(t, d, "two", contents, lengths)
	asVersion2(t, d, "two", contents)
	requirePages(t, d, "two", contents)
	require.Equal(t, int64(3*mib), savePages(t, d, "three", contents, lengths).Written, "a pack shares nothing with files")
	pruned, err := d.Prune(PruneOptions{})
	require.NoError(t, err)
	require.Equal(t, int64(3*mib), pruned.Bytes, "the pack of two")
	damage, _, err := d.Check(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, damage)
	requirePages(t, d, "two", contents)
	require.NoError(t, os.RemoveAll(filepath.Join(d.path, "two")))
	pruned, err = d.Prune(PruneOptions{})
	require.NoError(t, err)
	require.Equal(t, len(lengths), pruned.Blocks)
	requirePages(t, d, "three", contents)
}

// asVersion2 brings a snapshot into the form of version 2, in which each block of pages is a file.
func asVersion2(t *testing.T, d *Directory, name string, contents []byte) {
	t.Helper()
	m, err := d.readManifest(name)
	require.NoError(t, err)
	require.Equal(t, 3, m.Version)
	content := &m.Pages[0].Content
	for i, offset := range content.offsets() {
		path := d.blockPath(content.Blocks[i])
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, contents[offset:offset+content.length(i)], 0o600))
	}
	m.Version, m.Packs, content.Places = 2, nil, nil
	require.NoError(t, m.write(filepath.Join(d.path, name)))
}

func TestWrongLengthsAreRefused(t *testing.T) {
	for _, length := range []int64{0, -page, page + 1, BlockSize + page} {
		w, err := newDirectory(t).Begin("one")
		require.NoError(t, err)
		_, err = w.AddPages(t.Context(), memory(t, random(1, 4*mib)), []int64{length})
		require.ErrorContains(t, err, "is not of whole pages, or too large")
		require.Error(t, w.Commit(t.Context(), &Manifest{}))
	}
	one := []Sum{{1}}
	for what, content := range map[string]Content{
		"too few":  {Size: 3 * page, Blocks: make([]Sum, 1), Lengths: []int64{page}},
		"too many": {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{page, page}},
		"none":     {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{page, 0}},
		"negative": {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{2 * page, -page}},
		"large":    {Size: 2 * BlockSize, Blocks: make([]Sum, 1), Lengths: []int64{2 * BlockSize}},
		"unequal":  {Size: page, Blocks: make([]Sum, 2), Lengths: []int64{page}},
		"no place": {Size: 2 * page, Blocks: make([]Sum, 2), Lengths: []int64{page, page}, Places: []Place{{}}},
		"no pack":  {Size: page, Blocks: one, Lengths: []int64{page}, Places: []Place{{1, 0}}},
		"before":   {Size: page, Blocks: one, Lengths: []int64{page}, Places: []Place{{0, -page}}},
		"bytes":    {Size: 5, Blocks: one, Lengths: []int64{5}, Places: []Place{{0, 0}}},
	} {
		d := newDirectory(t)
		require.NoError(t, os.Mkdir(d.path+"/one", 0o700))
		require.NoError(t, (&Manifest{Version: Version, Packs: []string{"pack"}, Pages: []File{{"pages", content}}}).write(d.path+"/one"))
		_, err := d.Load("one")
		require.ErrorContains(t, err, "the list of blocks has another length", what)
	}
}

func TestAPackIsNamedByItsFolderAlone(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../lock", "a/b", "/etc/passwd"} {
		d := newDirectory(t)
		require.NoError(t, os.Mkdir(d.path+"/one", 0o700))
		require.NoError(t, (&Manifest{Version: Version, Packs: []string{name}}).write(d.path+"/one"))
		_, err := d.Load("one")
		require.ErrorContains(t, err, "is wrong", name)
	}
}

// A copy reads past the page cache, or leaves the blocks there.
func TestCopiesAndThePageCache(t *testing.T) {
	d := newDirectory(t)
	contents := random(1, 4*mib)
	savePages(t, d, "one", contents, blocksOfPages(4*mib, PageBlockSize))
	s, err := d.Load("one")
	require.NoError(t, err)
	defer s.Close()
	cached := func() (pages int) {
		for _, path := range blocks(t, d) {
			file, err := os.Open(path)
			require.NoError(t, err)
			info, err := file.Stat()
			require.NoError(t, err)
			mapping, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
			require.NoError(t, err)
			present := make([]byte, len(mapping)/page)
			_, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(len(mapping)),
				uintptr(unsafe.Pointer(&present[0])))
			require.Zero(t, failed)
			for _, is := range present {
				pages += int(is & 1)
			}
			require.NoError(t, unix.Munmap(mapping))
			require.NoError(t, file.Close())
		}
		return pages
	}
	forget := func() {
		for _, path := range blocks(t, d) {
			file, err := os.Open(path)
			require.NoError(t, err)
			require.NoError(t, unix.Fdatasync(int(file.Fd())))
			require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
			require.NoError(t, file.Close())
		}
	}
	forget()
	if os.Getpagesize() != page || cached() != 0 {
		t.Skip("the page cache of this file system keeps its pages, or they have another size")
	}
	for _, s.Cached = range []bool{false, true, true, false} {
		file := memory(t, nil)
		require.NoError(t, s.Copy(t.Context(), s.Manifest.Pages[0].Content, file))
		got, err := os.ReadFile("/proc/self/fd/" + itoa(int(file.Fd())))
		require.NoError(t, err)
		require.True(t, bytes.Equal(contents, got))
		if s.Cached {
			require.Greater(t, cached(), 4*mib/page/2) // the kernel may need some for others
			spoiled, err := d.Load("one")              // which finds what is wrong there, too
			require.NoError(t, err)
			spoiled.Cached = true
			other := spoiled.Manifest.Pages[0].Content
			other.Blocks = slices.Clone(other.Blocks)
			other.Blocks[3] = Sum{1}
			require.ErrorContains(t, spoiled.Copy(t.Context(), other, memory(t, nil)), "the block has other bytes")
			spoiled.Close()
		} else {
			forget()
			require.Zero(t, cached())
		}
	}
}
