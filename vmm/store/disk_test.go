package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/directio"
	"tms/internal/aid/failpoint"
	"tms/internal/cudasim"
	"tms/vmm/cuda"
)

// diskBench is a simulated device with a context, and a Disk that has its own directory.
type diskBench struct {
	t      testing.TB
	sim    *cudasim.Sim
	driver *cuda.Driver
	job    Job
	disk   *Disk
	path   string
	saved  []Contents
}

func silent(string) {}

func newDiskBench(t testing.TB) *diskBench {
	t.Helper()
	sim, driver, jobs := simulate(t, 1, "4G")
	b := &diskBench{t: t, sim: sim, driver: driver, job: jobs[0], path: t.TempDir()}
	b.disk = NewDisk(driver, &descriptors.Holder{}, silent)
	b.disk.chunkSize = mib
	require.NoError(t, b.disk.Configure(b.path, "TMS_DISK_BACKUP_DIR"))
	t.Cleanup(func() {
		discardAll(b.saved)
		b.clean(0)
	})
	return b
}

// clean asserts that only that number of files is held, and that no name is in the directory.
func (b *diskBench) clean(files int) {
	b.t.Helper()
	b.driver.Reclaim.Drain()
	require.Len(b.t, b.files(), files)
	require.Zero(b.t, b.sim.Stat("registered_bytes"), "staging memory left over")
	require.Zero(b.t, b.sim.Stat("streams"), "streams left over")
	names, err := filepath.Glob(filepath.Join(b.path, "tms-*"))
	require.NoError(b.t, err)
	require.Empty(b.t, names)
}

// files returns the files in the directory that the process has open.
func (b *diskBench) files() []unix.Stat_t {
	b.t.Helper()
	return filesIn(b.t, b.path)
}

func filesIn(t testing.TB, path string) (files []unix.Stat_t) {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range descriptors {
		target, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if strings.HasPrefix(target, path+"/") {
			var stat unix.Stat_t
			number, err := strconv.Atoi(fd.Name())
			require.NoError(t, err)
			require.NoError(t, unix.Fstat(number, &stat))
			files = append(files, stat)
		}
	}
	return files
}

// spans maps device memory.
func (b *diskBench) spans(sizes ...uint64) []Span {
	b.t.Helper()
	return spans(b.t, b.driver, 0, sizes...)
}

func (b *diskBench) save(spans []Span, kept []Contents) []Contents {
	b.t.Helper()
	contents, err := b.trySave(spans, kept)
	require.NoError(b.t, err)
	b.saved = append(b.saved, contents...)
	return contents
}

func (b *diskBench) trySave(spans []Span, kept []Contents) ([]Contents, error) {
	return b.disk.Save(b.job, itemsFor(spans, kept, -1))
}

func (b *diskBench) load(spans []Span, contents []Contents) error {
	loader := b.disk.Load(b.job)
	for i, c := range contents {
		loader.Add(spans[i], c)
	}
	return loader.Wait()
}

// requireBack asserts that a load brings back what Fill wrote.
func (b *diskBench) requireBack(t *testing.T, spans []Span, contents []Contents, seed uint64) {
	t.Helper()
	wipe(spans)
	require.NoError(t, b.load(spans, contents))
	requireFilled(t, spans, seed)
}

// failing fails the nth of the calls of a name, and those after it up to the last; the end is that of what it returns.
func failing(name string, first, last int64, err error) (end func()) {
	var made atomic.Int64
	failpoint.Set(func(call string) error {
		if call != name {
			return nil
		}
		if n := made.Add(1); n < first || n > last {
			return nil
		}
		return err
	})
	return func() { failpoint.Set(nil) }
}

func TestDiskRoundTrip(t *testing.T) {
	for _, chunk := range []uint64{mib, 3*mib + directio.Block, stagingSize} {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			b := newDiskBench(t)
			b.disk.chunkSize = chunk
			spans := b.spans(2*mib, 34*mib, 2*mib, 6*mib, 2*mib)
			var contents []Contents
			for cycle := range uint64(3) {
				fill(spans, cycle)
				previous := inodes(b.files())
				contents = b.save(spans, contents)
				if cycle > 0 {
					require.Equal(t, previous, inodes(b.files()), "overwritten in place")
				}
				b.requireBack(t, spans, contents, cycle)
				b.requireBack(t, spans, contents, cycle)
				b.clean(1)
			}
			for i, c := range contents {
				require.Equal(t, spans[i].Size, c.Bytes())
				require.Zero(t, c.Host())
			}
			discardAll(contents)
			contents[0].Discard() // harmless
		})
	}
}

func inodes(files []unix.Stat_t) (numbers []uint64) {
	for _, f := range files {
		numbers = append(numbers, f.Ino)
	}
	return numbers
}

// inHost is contents in ordinary memory of this process.
type inHost struct {
	Contents
	memory []byte
}

func (c inHost) Bytes() uint64 { return uint64(len(c.memory)) }
func (c inHost) Host() uintptr { return uintptr(unsafe.Pointer(&c.memory[0])) }

func newInHost(t *testing.T, size int, seed uint64) inHost {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
	if seed != 0 {
		_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(memory)
	}
	return inHost{memory: memory}
}

func TestDiskHostMemoryIsTakenAndGivenBack(t *testing.T) {
	b := newDiskBench(t)
	sizes := []int{2 * mib, 34 * mib, 64 << 10}
	var sources, targets []Contents
	for i, size := range sizes {
		sources = append(sources, newInHost(t, size, uint64(i+1)))
		targets = append(targets, newInHost(t, size, 0))
	}
	calls := b.sim.Stat("calls:cuMemcpyDtoHAsync") + b.sim.Stat("calls:cuMemHostRegister")
	taken, err := b.disk.Take(b.job, sources)
	require.NoError(t, err)
	b.clean(1)
	require.NoError(t, b.disk.Give(b.job, taken, targets))
	for i := range sizes {
		require.Equal(t, uint64(sizes[i]), taken[i].Bytes())
		require.True(t, bytes.Equal(sources[i].(inHost).memory, targets[i].(inHost).memory))
	}
	require.Equal(t, calls, b.sim.Stat("calls:cuMemcpyDtoHAsync")+b.sim.Stat("calls:cuMemHostRegister"),
		"the driver is not called")
	spans := b.spans(2*mib, 34*mib)
	require.NoError(t, b.load(spans, taken[:2]), "and it is as what Save has written")
	for i, span := range spans {
		require.True(t, bytes.Equal(sources[i].(inHost).memory, memoryOf(span)))
	}
	end := failing("pread", 1, 1, unix.EIO)
	err = b.disk.Give(b.job, taken, targets)
	end()
	require.ErrorIs(t, err, ErrContentsLost)
	discardAll(taken)
	b.clean(0)
	for _, call := range []string{"open", "fallocate", "pwrite"} {
		end := failing(call, 1, 1, unix.EIO)
		_, err = b.disk.Take(b.job, sources)
		end()
		require.ErrorIs(t, err, ErrDisk, call)
		b.clean(0)
	}
}

// A file has no name, and others cannot read it; discarded parts of it leave the disk.
func TestDiskFilesHaveNoName(t *testing.T) {
	for _, unnamed := range []bool{true, false} { // false: the file system makes none without a name
		b := newDiskBench(t)
		if !unnamed {
			defer failing("O_TMPFILE", 1, math.MaxInt64, unix.EOPNOTSUPP)()
		}
		contents := b.save(b.spans(2*mib, 4*mib), nil)
		b.clean(1)
		file := b.files()[0]
		require.Zero(t, file.Nlink)
		require.Equal(t, uint32(0o600), file.Mode&0o777)
		require.InDelta(t, 6*mib/512, file.Blocks, 64)
		contents[0].Discard()
		contents[0].Await(time.Time{})
		require.InDelta(t, 4*mib/512, b.files()[0].Blocks, 64)
		contents[1].Discard()
		contents[1].Await(time.Time{})
		require.Empty(t, b.files())
		b.clean(0)
	}
}

// A child that was forked during a transfer has the file open, and keeps nothing of it on the disk.
func TestDiskDiscardedContentsTakeNoSpaceThoughOthersHaveThem(t *testing.T) {
	b := newDiskBench(t)
	contents := b.save(b.spans(2*mib), nil)
	held, err := b.disk.Descriptors.Copy(contents[0].(*diskContents).first().number)
	require.NoError(t, err)
	discardAll(contents)
	b.driver.Reclaim.Drain()
	require.Zero(t, b.files()[0].Blocks)
	require.NoError(t, unix.Close(held))
}

// A large pause has several files, which are written side by side; none is larger than the process may make.
func TestDiskLargePausesHaveSeveralFiles(t *testing.T) {
	b := newDiskBench(t)
	spans := b.spans(slices.Repeat([]uint64{16 * mib}, 12)...)
	for _, pause := range [][]Span{spans, b.spans(192 * mib)} {
		fill(pause, 1)
		contents := b.save(pause, nil)
		b.clean(4)
		for _, file := range b.files() {
			require.InDelta(t, 48*mib/512, file.Blocks, 64)
		}
		b.requireBack(t, pause, contents, 1)
		discardAll(contents)
	}
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 40 * mib, Max: limit.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit)) }()
	fill(spans, 2)
	contents := b.save(spans, nil)
	b.clean(5)
	b.requireBack(t, spans, contents, 2)
}

// The disk has eight requests at once, and they take little pinned memory: it is made for each pause and resume.
func TestDiskKeepsTheDiskBusyWithLittleMemory(t *testing.T) {
	b := newDiskBench(t)
	b.disk.chunkSize = stagingSize
	spans := b.spans(128*mib, 128*mib)
	fill(spans, 1)
	for _, call := range []string{"pwrite", "pread"} {
		var begun atomic.Int64
		full, pinned := make(chan struct{}), b.sim.Stat("registered_bytes")
		failpoint.Set(func(name string) error {
			if name == call {
				if begun.Add(1) == 8 {
					pinned = b.sim.Stat("registered_bytes")
					close(full)
				}
				<-full
			}
			return nil
		})
		if call == "pwrite" {
			b.save(spans, nil)
		} else {
			require.NoError(t, b.load(spans, b.saved))
		}
		failpoint.Set(nil)
		require.LessOrEqual(t, pinned, b.sim.Stat("registered_bytes")+64*mib)
	}
	requireFilled(t, spans, 1)
}

func TestDiskUsageIsConstant(t *testing.T) {
	b := newDiskBench(t)
	usage := func() (blocks int64) {
		for _, file := range b.files() {
			blocks += file.Blocks
		}
		return blocks
	}
	spans := b.spans(2*mib, 4*mib, 2*mib)
	var kept []Contents
	for cycle := range 20 {
		kept = b.save(spans, kept)
		require.InDelta(t, 8*mib/512, usage(), 64, "cycle %d", cycle)
		if cycle%5 == 4 { // not retained
			require.NoError(t, b.load(spans, kept))
			discardAll(kept)
			kept = nil
			b.driver.Reclaim.Drain()
			require.Zero(t, usage())
		}
	}
}

func TestDiskManySpansNeedFewDescriptors(t *testing.T) {
	b := newDiskBench(t)
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var limit, lower syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	lower = limit
	lower.Cur = uint64(len(descriptors) + 16)
	spans := b.spans(slices.Repeat([]uint64{2 * mib}, 100)...)
	fill(spans, 1)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lower))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	contents := b.save(spans, nil)
	b.requireBack(t, spans, contents, 1)
}

// A disk that fails loses contents, which a later read may bring back; other spans come back.
func TestDiskDiskFails(t *testing.T) {
	b := newDiskBench(t)
	spans := b.spans(2*mib, 4*mib, 2*mib)
	fill(spans, 3)
	contents := b.save(spans, nil)
	at := contents[1].(*diskContents).place()
	for words, fails := range map[string]func(fd int) func(){
		"input/output error": func(int) func() { return failing("pread", 1, math.MaxInt64, unix.EIO) },
		"unexpected EOF": func(fd int) func() { // another process may cut it, by /proc
			require.NoError(t, unix.Ftruncate(fd, int64(at.offset+3*mib)))
			return func() {}
		},
	} {
		var end func()
		require.NoError(t, at.first().opened(func(fd int) error {
			end = fails(fd)
			return nil
		}))
		err := b.load(spans[1:2], contents[1:2])
		end()
		var lost *Lost
		require.ErrorAs(t, err, &lost)
		require.ErrorIs(t, err, ErrContentsLost)
		require.NotErrorIs(t, err, ErrDisk)
		require.Equal(t, b.path, lost.Directory)
		require.Less(t, uint64(lost.Address-spans[1].Address), spans[1].Size)
		require.ErrorContains(t, err, "contents are lost unless their file in "+b.path+" can be read again ("+words)
		require.NotContains(t, err.Error(), "TMS_DISK_BACKUP_DIR")
		require.NoError(t, b.load(spans[:1], contents[:1]))
		b.clean(1)
		contents = b.save(spans, contents) // makes everything good
		b.requireBack(t, spans, contents, 3)
	}
}

// unreachable fails calls of the thread that keeps descriptors, also those of reclaim's thread.
type unreachable struct {
	descriptors.Holder
	keep, copy, drop atomic.Pointer[error]
}

func (u *unreachable) Keep(descriptor int) (uint64, error) {
	if err := u.keep.Load(); err != nil {
		return 0, *err
	}
	return u.Holder.Keep(descriptor)
}

func (u *unreachable) Copy(number uint64) (int, error) {
	if err := u.copy.Load(); err != nil {
		return -1, *err
	}
	return u.Holder.Copy(number)
}

func (u *unreachable) Drop(number uint64) error {
	if err := u.drop.Load(); err != nil {
		return *err
	}
	return u.Holder.Drop(number)
}

// Where files cannot be kept, or reached for a while, nothing is lost, and space comes back later.
func TestDiskFilesCannotBeKept(t *testing.T) {
	b := newDiskBench(t)
	thread := &unreachable{}
	b.disk.Descriptors = thread
	spans := b.spans(2*mib, 4*mib)
	fill(spans, 3)
	for _, fails := range []*atomic.Pointer[error]{&thread.keep, &thread.copy} {
		for _, cause := range []error{unix.EMFILE, errors.New("busy")} {
			fails.Store(&cause)
			_, err := b.trySave(spans, nil)
			fails.Store(nil)
			require.ErrorIs(t, err, ErrDisk)
			require.ErrorIs(t, err, cause)
			words := "call again, or have contents wait in host memory"
			if cause == unix.EMFILE {
				words = "raise the limit of open files (ulimit -n)"
			}
			require.ErrorContains(t, err, words)
			b.driver.Reclaim.Retry()
			b.clean(0)
		}
	}
	contents := b.save(spans, nil)
	busy := errors.New("busy")
	thread.copy.Store(&busy)
	err := b.load(spans, contents)
	require.ErrorIs(t, err, ErrDisk)
	require.NotErrorIs(t, err, ErrContentsLost)
	thread.copy.Store(nil)
	b.requireBack(t, spans, contents, 3)
	thread.drop.Store(&busy)
	discardAll(contents)
	b.clean(1)
	thread.drop.Store(nil)
	b.clean(0)
}

func TestDiskMovesToAnotherDirectory(t *testing.T) {
	b := newDiskBench(t)
	spans := b.spans(2 * mib)
	fill(spans, 1)
	contents := b.save(spans, nil)
	other := filepath.Join(t.TempDir(), "new", "deeper")
	require.NoError(t, b.disk.Configure(other, "TMS_DISK_BACKUP_DIR"))
	info, err := os.Stat(other)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, info.Mode())
	b.requireBack(t, spans, contents, 1)

	b.sim.Fail("cuMemcpyDtoHAsync", 1, 999)
	_, err = b.trySave(spans, contents)
	require.Error(t, err)
	require.Len(t, b.files(), 1)

	b.save(spans, contents)
	b.driver.Reclaim.Drain()
	require.Empty(t, b.files())
	require.Len(t, filesIn(t, other), 1)
	b.requireBack(t, spans, contents, 1)
	discardAll(contents)
	b.driver.Reclaim.Drain()
	require.Empty(t, filesIn(t, other))
}

func TestDiskDirectoryIsRelative(t *testing.T) {
	b := newDiskBench(t)
	spans := b.spans(2 * mib)
	t.Chdir(b.path)
	require.NoError(t, b.disk.Configure("below/it", "TMS_DISK_BACKUP_DIR"))
	contents := b.save(spans, nil)
	require.NoError(t, b.load(spans, contents))
	require.Len(t, filesIn(t, filepath.Join(b.path, "below", "it")), 1)
	require.NoError(t, os.RemoveAll("below"), "a file needs no directory")
	require.NoError(t, b.load(spans, contents))
}

func TestDiskDirectoryCannotBeUsed(t *testing.T) {
	b := newDiskBench(t)
	file := filepath.Join(b.path, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "below"), "/proc/tms", "/sys/kernel"} {
		err := b.disk.Configure(path, "TMS_DISK_BACKUP_DIR")
		if path == "/sys/kernel" && err == nil {
			// Root may write, but not here.
			_, err = b.trySave(b.spans(2*mib), nil)
			require.NoError(t, b.disk.Configure(b.path, "TMS_DISK_BACKUP_DIR"))
		}
		require.ErrorIs(t, err, ErrDisk, path)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "set TMS_DISK_BACKUP_DIR")
	}
	_, err := NewDisk(b.driver, &descriptors.Holder{}, silent).Save(b.job, nil)
	require.ErrorIs(t, err, ErrDisk)
}

func TestDiskIsFull(t *testing.T) {
	b := newDiskBench(t)
	copies := b.sim.Stat("calls:cuMemcpyDtoHAsync_v2")
	_, err := b.trySave([]Span{{Address: 1 << 40, Size: 1 << 50}}, nil)
	require.ErrorIs(t, err, ErrDisk)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, b.path)
	require.ErrorContains(t, err, "set TMS_DISK_BACKUP_DIR")
	require.Equal(t, copies, b.sim.Stat("calls:cuMemcpyDtoHAsync_v2"))
}

// small mounts a file system in memory, of 8 MiB.
func small(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	if err := unix.Mount("none", path, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("mounting needs a privilege: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, 0)) })
	return path
}

func TestDiskIsSmall(t *testing.T) {
	path := small(t)
	b := newDiskBench(t)
	require.NoError(t, b.disk.Configure(path, "TMS_DISK_BACKUP_DIR"))
	b.path = path
	spans := b.spans(4*mib, 2*mib, 4*mib)
	fill(spans, 5)
	_, err := b.trySave(spans, nil)
	require.ErrorIs(t, err, unix.ENOSPC)
	b.clean(0)
	kept := b.save(spans[:2], nil)
	_, err = b.trySave(spans, []Contents{kept[0], kept[1], nil})
	require.ErrorIs(t, err, unix.ENOSPC)
	b.requireBack(t, spans[:2], kept, 5)

	// Space that looked free is gone when it is to be reserved.
	file := &diskFile{extent: extent{size: 1 << 40}, disk: b.disk, directory: b.disk.current}
	err = file.create()
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, "reserving")
}

func TestDiskWarnsOfMemoryOnce(t *testing.T) {
	path := small(t)
	b := newDiskBench(t)
	defer tmpfsWarned.Store(tmpfsWarned.Swap(false))
	var lines []string
	b.disk.warn = func(line string) { lines = append(lines, line) }
	require.NoError(t, b.disk.Configure(path, "TMS_DISK_BACKUP_DIR"))
	require.NoError(t, b.disk.Configure(path, "TMS_DISK_BACKUP_DIR"))
	other := NewDisk(b.driver, &descriptors.Holder{}, b.disk.warn)
	require.NoError(t, other.Configure(path, "TMS_DISK_BACKUP_DIR"))
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], path)
	require.Contains(t, lines[0], "TMS_DISK_BACKUP_DIR")
}

func TestDiskDiscardsFromManyThreads(t *testing.T) {
	b := newDiskBench(t)
	span := b.spans(2 * mib)[0]
	span.Size = 4096 // as small as O_DIRECT takes, to be quick
	contents := b.save(slices.Repeat([]Span{span}, 84), nil)
	var group sync.WaitGroup
	for part := range 4 {
		group.Go(func() {
			for i := part; i < len(contents); i += 4 {
				contents[i].Discard()
			}
		})
	}
	group.Wait()
	b.clean(0)
}

func TestDiskWithoutDirectIO(t *testing.T) {
	b := newDiskBench(t)
	spans := b.spans(2 * mib)
	fill(spans, 1)
	contents := b.save(spans, nil)
	file := contents[0].(*diskContents).first()
	direct := file.direct.Load()
	buffer := make([]byte, mib)
	open := &openFile{file: file, fd: -1, requests: 1}
	if direct && !b.disk.current.InMemory() { // memory has no blocks: any offset will do
		// A file system that refuses only when it is used, as O_DIRECT does at an odd offset.
		require.NoError(t, open.direct().Read(buffer, 1))
		require.Equal(t, memoryOf(spans[0])[1:mib+1], buffer)
		require.False(t, file.direct.Load())
	}
	// Buffered: writing and reading leave nothing in the page cache.
	file.direct.Store(false)
	require.NoError(t, open.direct().Write(memoryOf(spans[0])[:mib], 0))
	require.NoError(t, open.direct().Read(buffer, 0))
	require.Equal(t, memoryOf(spans[0])[:mib], buffer)
	open.done()
	discardAll(contents)
	b.clean(0)
	if direct { // a file system that refuses it at once
		refused := 0
		failpoint.Set(func(call string) error {
			if call == "open" {
				if refused++; refused == 1 {
					return unix.EINVAL
				}
			}
			return nil
		})
		contents = b.save(spans, nil)
		failpoint.Set(nil)
		require.False(t, contents[0].(*diskContents).first().direct.Load())
		b.requireBack(t, spans, contents, 1)
	}
}

// The host closes descriptors in the middle of a transfer, and has files of its own at the numbers.
func TestDiskFileIsOpenedAgain(t *testing.T) {
	b := newDiskBench(t)
	spans := b.spans(2 * mib)
	fill(spans, 1)
	contents := b.save(spans, nil)
	file := contents[0].(*diskContents).first()
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("the host's"), 0o600))
	hosts, err := unix.Open(other, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	half := make([][]byte, 2) // as O_DIRECT wants them
	for i := range half {
		half[i] = memoryOf(spans[0])[i*mib : (i+1)*mib]
	}
	for _, reads := range []bool{false, true} {
		open := &openFile{file: file, fd: -1, requests: 2}
		move := open.direct().Write
		if reads {
			wipe(spans)
			move = open.direct().Read
		}
		require.NoError(t, move(half[0], 0))
		taken := open.fd
		require.NoError(t, unix.Dup3(hosts, taken, unix.O_CLOEXEC))
		require.NoError(t, move(half[1], mib))
		require.NotEqual(t, taken, open.fd)
		last := open.fd
		require.NoError(t, unix.Dup3(hosts, last, unix.O_CLOEXEC))
		open.done()
		open.done()
		for _, fd := range []int{taken, last} {
			require.NoError(t, unix.Close(fd), "it was not ours to close")
		}
	}
	requireFilled(t, spans, 1)
	text, err := os.ReadFile(other)
	require.NoError(t, err)
	require.Equal(t, "the host's", string(text))
	require.NoError(t, unix.Close(hosts))
}

// Every error of a directory has a text of its own, which names the setting that the directory came from.
func TestDiskErrorsNameTheSetting(t *testing.T) {
	b := newDiskBench(t)
	file := filepath.Join(b.path, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for setting, words := range map[string]string{
		"TMS_DISK_BACKUP_DIR":     "; set TMS_DISK_BACKUP_DIR to a directory",
		"tms_set_disk_backup_dir": "; call tms_set_disk_backup_dir with a directory",
		"TMPDIR":                  "; TMPDIR names it: set that, or TMS_DISK_BACKUP_DIR, to a directory",
		"":                        "; it is the default: set TMS_DISK_BACKUP_DIR to a directory",
	} {
		err := b.disk.Configure(file, setting)
		require.ErrorIs(t, err, ErrDisk)
		require.ErrorContains(t, err, file+": not a directory"+words+" that can be written")
		require.NoError(t, b.disk.Configure(b.path, setting))
		for cause, what := range map[error]string{
			unix.ENOSPC: "no space left on device; free space there, or ",
			unix.EDQUOT: "disk quota exceeded; free space in your quota, or ",
			unix.EMFILE: "too many open files; raise the limit of open files (ulimit -n)",
			unix.EACCES: "permission denied" + words,
			unix.EROFS:  "read-only file system" + words,
		} {
			end := failing("open", 1, math.MaxInt64, cause)
			_, err = b.trySave(b.spans(2*mib), nil)
			end()
			require.ErrorIs(t, err, ErrDisk)
			require.ErrorIs(t, err, cause)
			require.ErrorContains(t, err, what)
			if cause == unix.ENOSPC {
				require.ErrorContains(t, err, strings.TrimPrefix(words, "; "))
			}
		}
	}
}

// BenchmarkDisk saves and loads 2 GiB under TMS_DISK_BACKUP_DIR, or where tests have their files, beside plain parallel
// writes and reads of as many bytes there.
func BenchmarkDisk(b *testing.B) {
	if path := os.Getenv("TMS_DISK_BACKUP_DIR"); path != "" {
		b.Setenv("TMPDIR", path)
	}
	w := newDiskBench(b)
	w.disk.chunkSize = stagingSize
	spans := w.spans(1024*mib, 1024*mib)
	block := make([]byte, 64*mib) // data that a disk cannot compress
	_, _ = rand.NewChaCha8([32]byte{}).Read(block)
	for _, span := range spans {
		for bytes := memoryOf(span); len(bytes) > 0; bytes = bytes[len(block):] {
			copy(bytes, block)
		}
	}
	seconds := map[string]float64{}
	timed := func(what string, f func()) {
		unix.Sync()
		start := time.Now()
		f()
		seconds[what] += time.Since(start).Seconds()
	}
	var kept []Contents
	for b.Loop() {
		timed("save", func() { kept = w.save(spans, nil) })
		timed("overwrite", func() { kept = w.save(spans, kept) })
		timed("load", func() { require.NoError(b, w.load(spans, kept)) })
		discardAll(kept)
		w.driver.Reclaim.Drain()

		plain := newPlainFiles(b, w.path, 2048*mib)
		timed("plain save", func() { plain.transfer(unix.Pwrite) })
		timed("plain overwrite", func() { plain.transfer(unix.Pwrite) })
		timed("plain load", func() { plain.transfer(unix.Pread) })
		plain.close()
	}
	for _, what := range []string{"save", "overwrite", "load"} {
		b.ReportMetric(float64(b.N)*2048/1024/seconds[what], what+"-GiB/s")
		b.ReportMetric(seconds["plain "+what]/seconds[what], what+"-over-plain")
	}
}

// plainFiles are what a program that does nothing else would write to, past the page cache.
type plainFiles struct {
	b     *testing.B
	files [8]int
	size  int64
	parts [8][]byte // of a thread
}

func newPlainFiles(b *testing.B, path string, size int64) *plainFiles {
	p := &plainFiles{b: b, size: size}
	for i := range p.files {
		var err error
		p.files[i], err = unix.Open(path, unix.O_TMPFILE|unix.O_RDWR|unix.O_DIRECT, 0o600)
		require.NoError(b, err)
		require.NoError(b, unix.Fallocate(p.files[i], 0, 0, size/int64(len(p.files))))
		p.parts[i] = directio.Buffer(4 * mib)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(p.parts[i])
	}
	return p
}

func (p *plainFiles) transfer(call func(int, []byte, int64) (int, error)) {
	var threads sync.WaitGroup
	for i, part := range p.parts {
		threads.Go(func() {
			for at := int64(0); at < p.size/int64(len(p.files)); at += int64(len(part)) {
				n, err := call(p.files[i], part, at)
				require.NoError(p.b, err)
				require.Len(p.b, part, n)
			}
		})
	}
	threads.Wait()
}

func (p *plainFiles) close() {
	for _, fd := range p.files {
		require.NoError(p.b, unix.Close(fd))
	}
}

// Nothing stays of a file that could not be completed.
func TestDiskUnmadeFilesGo(t *testing.T) {
	for _, fails := range []string{"open", "fstat", "fallocate"} {
		b := newDiskBench(t)
		end := failing(fails, 1, 1, unix.EIO)
		_, err := b.trySave(b.spans(2*mib), nil)
		end()
		require.ErrorIs(t, err, ErrDisk)
		b.clean(0)
	}
}
