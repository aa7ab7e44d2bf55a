package disk

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/cudasim"
	"tms/internal/failpoint"
	"tms/internal/hermetic"
	"tms/internal/process"
	"tms/vmm/backup"
	"tms/vmm/backup/internal/backuptest"
	"tms/vmm/cuda"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

const mib = 1 << 20

// bench is a simulated device with a context, and a Store that has its own directory.
type bench struct {
	t      testing.TB
	sim    *cudasim.Sim
	driver *cuda.Driver
	job    backup.Job
	disk   *Store
	path   string
	saved  []backup.Contents
}

func silent(string) {}

func newBench(t testing.TB) *bench {
	t.Helper()
	sim, driver, jobs := backuptest.Simulate(t, 1, "4G")
	b := &bench{t: t, sim: sim, driver: driver, job: jobs[0], disk: New(driver, silent), path: t.TempDir()}
	b.disk.chunkSize = mib
	require.NoError(t, b.disk.Configure(b.path, "TMS_DISK_BACKUP_DIR"))
	t.Cleanup(func() {
		backuptest.Discard(b.saved)
		b.clean(0)
	})
	return b
}

// clean asserts that nothing is held but files, and without files no descriptor either.
func (b *bench) clean(files int) {
	b.t.Helper()
	b.driver.Reclaim.Drain()
	require.Len(b.t, b.files(), files)
	require.Zero(b.t, b.sim.Stat("registered_bytes"), "staging memory left over")
	require.Zero(b.t, b.sim.Stat("streams"), "streams left over")
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(b.t, err)
	for _, fd := range descriptors {
		target, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		require.NotContains(b.t, target, ".bak", "left open")
		if files == 0 {
			require.NotEqual(b.t, b.path, target, "left open")
		}
	}
}

func (b *bench) files() []string {
	b.t.Helper()
	files, err := filepath.Glob(filepath.Join(b.path, "tms-*.bak"))
	require.NoError(b.t, err)
	return files
}

// spans maps device memory.
func (b *bench) spans(sizes ...uint64) []backup.Span {
	b.t.Helper()
	return backuptest.Spans(b.t, b.driver, 0, sizes...)
}

func (b *bench) save(spans []backup.Span, kept []backup.Contents) []backup.Contents {
	b.t.Helper()
	contents, err := b.trySave(spans, kept)
	require.NoError(b.t, err)
	b.saved = append(b.saved, contents...)
	return contents
}

func (b *bench) trySave(spans []backup.Span, kept []backup.Contents) ([]backup.Contents, error) {
	return b.disk.Save(b.job, backuptest.Items(spans, kept, -1))
}

func (b *bench) load(spans []backup.Span, contents []backup.Contents) error {
	loader := b.disk.Load(b.job)
	for i, c := range contents {
		loader.Add(spans[i], c)
	}
	return loader.Wait()
}

// requireBack asserts that a load brings back what Fill wrote.
func (b *bench) requireBack(t *testing.T, spans []backup.Span, contents []backup.Contents, seed uint64) {
	t.Helper()
	backuptest.Wipe(spans)
	require.NoError(t, b.load(spans, contents))
	backuptest.RequireFilled(t, spans, seed)
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

func TestRoundTrip(t *testing.T) {
	for _, chunk := range []uint64{mib, 3*mib + blockSize, stagingSize} {
		t.Run(fmt.Sprint(chunk), func(t *testing.T) {
			b := newBench(t)
			b.disk.chunkSize = chunk
			spans := b.spans(2*mib, 34*mib, 2*mib, 6*mib, 2*mib)
			var contents []backup.Contents
			for cycle := range uint64(3) {
				backuptest.Fill(spans, cycle)
				previous := b.files()
				contents = b.save(spans, contents)
				if cycle > 0 {
					require.Equal(t, previous, b.files(), "overwritten in place")
				}
				b.requireBack(t, spans, contents, cycle)
				b.requireBack(t, spans, contents, cycle)
				b.clean(len(spans))
			}
			for i, c := range contents {
				require.Equal(t, spans[i].Size, c.Bytes())
				require.Zero(t, c.Host())
			}
			backuptest.Discard(contents)
			contents[0].Discard() // harmless
		})
	}
}

// inHost is contents in ordinary memory of this process.
type inHost struct {
	backup.Contents
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

func TestHostMemoryIsTakenAndGivenBack(t *testing.T) {
	b := newBench(t)
	sizes := []int{2 * mib, 34 * mib, 64 << 10}
	var sources, targets []backup.Contents
	for i, size := range sizes {
		sources = append(sources, newInHost(t, size, uint64(i+1)))
		targets = append(targets, newInHost(t, size, 0))
	}
	calls := b.sim.Stat("calls:cuMemcpyDtoHAsync") + b.sim.Stat("calls:cuMemHostRegister")
	taken, err := b.disk.Take(b.job, sources)
	require.NoError(t, err)
	b.clean(len(sizes))
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
		require.True(t, bytes.Equal(sources[i].(inHost).memory, backuptest.Bytes(span)))
	}
	require.NoError(t, os.Truncate(b.files()[0], 1))
	err = b.disk.Give(b.job, taken, targets)
	require.ErrorIs(t, err, ErrContentsLost)
	backuptest.Discard(taken)
	b.clean(0)
	for _, call := range []string{"open", "fallocate", "pwrite"} {
		end := failing(call, 2, 2, unix.EIO)
		_, err = b.disk.Take(b.job, sources)
		end()
		require.ErrorIs(t, err, ErrFailed, call)
		b.clean(0)
	}
}

func TestKeepsSomeAndAddsOthers(t *testing.T) {
	b := newBench(t)
	spans := b.spans(4*mib, 2*mib)
	backuptest.Fill(spans, 1)
	first := b.save(spans[:1], nil)
	backuptest.Fill(spans, 2)
	both := b.save(spans, []backup.Contents{first[0], nil})
	require.Same(t, first[0], both[0])
	b.requireBack(t, spans, both, 2)
}

func TestFilesAreVisiblePrivateAndGone(t *testing.T) {
	b := newBench(t)
	old := unix.Umask(0o277)
	contents := b.save(b.spans(2*mib, 4*mib), nil)
	unix.Umask(old)
	files := b.files()
	require.Len(t, files, 2)
	for i, file := range files {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		require.Equal(t, int64(2*mib*(i+1)), info.Size())
		require.Regexp(t, fmt.Sprintf(`/tms-%d-\d+\.[0-9a-f]{8}-\d+\.bak$`, os.Getpid()), file)
	}
	contents[0].Discard()
	contents[0].Await(time.Time{})
	require.Len(t, b.files(), 1)
	contents[1].Discard()
	contents[1].Await(time.Time{})
	require.Empty(t, b.files())
	entries, err := os.ReadDir(b.path)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestUsageIsConstant(t *testing.T) {
	b := newBench(t)
	usage := func() (blocks int64) {
		for _, file := range b.files() {
			var stat unix.Stat_t
			require.NoError(t, unix.Stat(file, &stat))
			blocks += stat.Blocks
		}
		return blocks
	}
	spans := b.spans(2*mib, 4*mib, 2*mib)
	var kept []backup.Contents
	for cycle := range 20 {
		kept = b.save(spans, kept)
		require.InDelta(t, 8*mib/512, usage(), 64, "cycle %d", cycle)
		if cycle%5 == 4 { // not retained
			require.NoError(t, b.load(spans, kept))
			backuptest.Discard(kept)
			kept = nil
			b.driver.Reclaim.Drain()
			require.Zero(t, usage())
		}
	}
}

func TestManyFilesNeedFewDescriptors(t *testing.T) {
	b := newBench(t)
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var limit, lower syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	lower = limit
	lower.Cur = uint64(len(descriptors) + 16)
	spans := b.spans(slices.Repeat([]uint64{2 * mib}, 100)...)
	backuptest.Fill(spans, 1)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lower))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	contents := b.save(spans, nil)
	b.requireBack(t, spans, contents, 1)
}

// TestDriverFails fails every driver call of a save and of a load, one at a time.
func TestDriverFails(t *testing.T) {
	calls := []string{"cuCtxPushCurrent", "cuCtxPopCurrent", "cuStreamCreate", "cuStreamSynchronize",
		"cuStreamDestroy", "cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"}
	b := newBench(t)
	spans := b.spans(2*mib, 2*mib)
	backuptest.Fill(spans, 7)
	saved := b.save(spans, nil)
	points := 0
	each := func(files int, operation func() error, after func(error)) {
		for _, call := range calls {
			for nth := 1; ; nth++ {
				fired := b.sim.FailuresFired()
				b.sim.Fail(call, nth, 999)
				err := operation()
				if b.sim.FailuresFired() == fired {
					b.sim.ClearFailures()
					require.NoError(t, err)
					after(err)
					break
				}
				points++
				if err != nil {
					require.ErrorIs(t, err, cuda.Unknown, "%s %d", call, nth)
					b.clean(files)
				}
				after(err)
			}
		}
	}
	var contents []backup.Contents
	each(2, func() (err error) {
		contents, err = b.trySave(spans, nil)
		return err
	}, func(err error) {
		if err != nil {
			require.Nil(t, contents)
		}
		backuptest.Discard(contents)
		b.clean(2)
	})
	each(2, func() error {
		_, err := b.trySave(spans, saved)
		return err
	}, func(error) { b.clean(2) })
	b.save(spans, saved)
	each(2, func() error { return b.load(spans, saved) }, func(error) {
		b.clean(2)
		b.requireBack(t, spans, saved, 7)
	})
	t.Logf("%d failure points", points)
	require.Greater(t, points, 30)
}

func TestDamageIsNoticed(t *testing.T) {
	b := newBench(t)
	spans := b.spans(2*mib, 4*mib, 2*mib)
	backuptest.Fill(spans, 3)
	contents := b.save(spans, nil)
	file := contents[1].(*diskContents).file.path
	moved := filepath.Join(b.path, "moved")
	for _, damage := range []struct {
		words string
		does  func() error // once the file is moved away
	}{
		{"is not the file that was saved: another has its name",
			func() error { return os.WriteFile(file, make([]byte, 4*mib), 0o600) }},
		{"another has its name", func() error { return os.Symlink(moved, file) }},
		{"another has its name", func() error { return unix.Mkfifo(file, 0o600) }},
		{"is not the file that was saved: it was deleted or moved (no such file", func() error { return nil }},
		{"is not the file that was saved: it was cut to 3145728 of 4194304 bytes",
			func() error { return errors.Join(os.Truncate(moved, 3*mib), os.Rename(moved, file)) }},
	} {
		require.NoError(t, os.Rename(file, moved))
		require.NoError(t, damage.does())
		backuptest.Wipe(spans)
		err := b.load(spans, contents)
		var lost *Lost
		require.ErrorAs(t, err, &lost, damage.words)
		require.ErrorIs(t, err, ErrContentsLost)
		require.NotErrorIs(t, err, ErrFailed)
		require.Equal(t, file, lost.Path)
		require.Less(t, uint64(lost.Address-spans[1].Address), spans[1].Size)
		require.ErrorContains(t, err, "contents are lost: "+file+" is")
		require.ErrorContains(t, err, damage.words)
		require.NotContains(t, err.Error(), "TMS_DISK_BACKUP_DIR")
		require.NoError(t, b.load([]backup.Span{spans[0], spans[2]}, []backup.Contents{contents[0], contents[2]}))
		_ = os.Rename(moved, file) // the last is there already
		b.clean(3)
		if !strings.Contains(damage.words, "cut") {
			b.requireBack(t, spans, contents, 3)
		}
	}
	// The next save makes everything good, and leaves alone what is not its own.
	backuptest.Fill(spans, 4)
	b.save(spans, contents)
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	b.save(spans, contents)
	b.requireBack(t, spans, contents, 4)
	mine, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "mine", string(mine))
	require.NoError(t, os.Remove(file))
}

func TestMovesToAnotherDirectory(t *testing.T) {
	b := newBench(t)
	spans := b.spans(2 * mib)
	backuptest.Fill(spans, 1)
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
	b.requireBack(t, spans, contents, 1)
	backuptest.Discard(contents)
	b.driver.Reclaim.Drain()
	entries, err := os.ReadDir(other)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestDirectoryIsRelative(t *testing.T) {
	b := newBench(t)
	spans := b.spans(2 * mib)
	t.Chdir(b.path)
	require.NoError(t, b.disk.Configure("below/it", "TMS_DISK_BACKUP_DIR"))
	contents := b.save(spans, nil)
	require.NoError(t, os.Chdir("/"))
	require.NoError(t, b.load(spans, contents))
	files, err := filepath.Glob(filepath.Join(b.path, "below", "it", "*.bak"))
	require.NoError(t, err)
	require.Len(t, files, 1)
}

func TestDirectoryCannotBeUsed(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(b.path, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "below"), "/proc/tms", "/sys/kernel"} {
		err := b.disk.Configure(path, "TMS_DISK_BACKUP_DIR")
		if path == "/sys/kernel" && err == nil {
			// Root may write, but not here.
			_, err = b.trySave(b.spans(2*mib), nil)
			require.NoError(t, b.disk.Configure(b.path, "TMS_DISK_BACKUP_DIR"))
		}
		require.ErrorIs(t, err, ErrFailed, path)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "set TMS_DISK_BACKUP_DIR")
	}
	_, err := New(b.driver, silent).Save(b.job, nil)
	require.ErrorIs(t, err, ErrFailed)
}

func TestIsFull(t *testing.T) {
	b := newBench(t)
	copies := b.sim.Stat("calls:cuMemcpyDtoHAsync_v2")
	_, err := b.trySave([]backup.Span{{Address: 1 << 40, Size: 1 << 50}}, nil)
	require.ErrorIs(t, err, ErrFailed)
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

func TestIsSmall(t *testing.T) {
	path := small(t)
	b := newBench(t)
	require.NoError(t, b.disk.Configure(path, "TMS_DISK_BACKUP_DIR"))
	b.path = path
	spans := b.spans(4*mib, 2*mib, 4*mib)
	backuptest.Fill(spans, 5)
	_, err := b.trySave(spans, nil)
	require.ErrorIs(t, err, unix.ENOSPC)
	b.clean(0)
	kept := b.save(spans[:2], nil)
	_, err = b.trySave(spans, []backup.Contents{kept[0], kept[1], nil})
	require.ErrorIs(t, err, unix.ENOSPC)
	b.requireBack(t, spans[:2], kept, 5)

	// Space that looked free is gone when it is to be reserved.
	file, err := b.disk.current.create(1<<40, b.disk.removed)
	require.Nil(t, file)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorContains(t, err, "reserving")
}

func TestWarnsOfMemoryOnce(t *testing.T) {
	path := small(t)
	b := newBench(t)
	defer tmpfsWarned.Store(tmpfsWarned.Swap(false))
	var lines []string
	b.disk.warn = func(line string) { lines = append(lines, line) }
	require.NoError(t, b.disk.Configure(path, "TMS_DISK_BACKUP_DIR"))
	require.NoError(t, b.disk.Configure(path, "TMS_DISK_BACKUP_DIR"))
	other := New(b.driver, b.disk.warn)
	require.NoError(t, other.Configure(path, "TMS_DISK_BACKUP_DIR"))
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], path)
	require.Contains(t, lines[0], "TMS_DISK_BACKUP_DIR")
}

func TestLeftovers(t *testing.T) {
	dead := exec.Command("true")
	require.NoError(t, dead.Run())
	zombie := exec.Command("true")
	require.NoError(t, zombie.Start())
	defer func() { _ = zombie.Wait() }()
	var zombieStart uint64
	require.Eventually(t, func() bool {
		start, gone, err := process.Started(zombie.Process.Pid)
		zombieStart = start
		return err == nil && gone
	}, time.Minute, time.Millisecond)
	parent := os.Getppid()
	parentStart, _, err := process.Started(parent)
	require.NoError(t, err)
	me, err := self()
	require.NoError(t, err)
	boot := me.boot
	unseen := owner{pid: dead.Process.Pid, start: 77, boot: boot}       // in another PID namespace
	hidden := owner{pid: dead.Process.Pid, start: 78, boot: "00000000"} // in one that does not see the boot's ID

	path := t.TempDir()
	gone := []string{
		owner{dead.Process.Pid, 5, boot}.name(1),
		owner{parent, parentStart + 1, boot}.name(1),
		owner{zombie.Process.Pid, zombieStart, boot}.name(1),
		owner{parent, parentStart, "0badb007"}.name(3), // before the machine started again
		me.name(1 << 40), // before an exec
	}
	stay := []string{
		owner{parent, parentStart, boot}.name(1),
		me.name(serial.Add(1)),
		unseen.name(1), hidden.name(1),
		"tms-1-2-3.bak", "tms--1-5." + boot + "-1.bak", "tms-099999999-5." + boot + "-1.bak",
		strings.TrimSuffix(gone[0], ".bak"), gone[0] + ".bak", "x" + gone[0], "other",
	}
	link := owner{dead.Process.Pid, 6, boot}.name(1)
	for _, name := range append(append([]string{}, gone...), stay...) {
		require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(name), 0o600))
	}
	require.NoError(t, os.Symlink("other", filepath.Join(path, link)))
	lock, err := os.Open(path)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unseen.lock(int(lock.Fd())))
	require.NoError(t, hidden.lock(int(lock.Fd())))

	d := New(new(cuda.Driver), silent)
	require.NoError(t, d.Configure(path, "TMS_DISK_BACKUP_DIR"))
	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(path, name))
		return err == nil
	}
	for _, name := range gone {
		require.False(t, exists(name), name)
	}
	for _, name := range append(stay, link) {
		require.True(t, exists(name), name)
	}
	// Only at the first use; later it would be wasteful.
	require.NoError(t, lock.Close())
	require.NoError(t, d.Configure(path, "TMS_DISK_BACKUP_DIR"))
	require.True(t, exists(unseen.name(1)))
	require.NoError(t, New(new(cuda.Driver), silent).Configure(path, "TMS_DISK_BACKUP_DIR"))
	require.False(t, exists(unseen.name(1)))
}

func TestDiscardsFromManyThreads(t *testing.T) {
	b := newBench(t)
	span := b.spans(2 * mib)[0]
	span.Size = 4096 // as small as O_DIRECT takes, to be quick
	contents := b.save(slices.Repeat([]backup.Span{span}, 84), nil)
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

// A process that had no descriptor when it first looked up its own identity can do so later: under half a name others
// would take it for dead, or it them.
func TestOwnerIsKnownOnceThereIsADescriptor(t *testing.T) {
	want, err := self()
	require.NoError(t, err)
	myself.known = false
	defer func() { myself.owner, myself.known = want, true }()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	_, err = self()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, unix.EMFILE)
	got, err := self()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestOwnerIsLockedWhileItHasFiles(t *testing.T) {
	b := newBench(t)
	other, err := os.Open(b.path)
	require.NoError(t, err)
	defer other.Close()
	me, err := self()
	require.NoError(t, err)
	locked := func() bool { return me.locked(int(other.Fd())) }
	require.False(t, locked())
	contents := b.save(b.spans(2*mib, 2*mib), nil)
	require.True(t, locked())
	// A host that closes all descriptors releases the lock; the next save takes it again, and closes no file that has
	// the number by now.
	lock := contents[0].(*diskContents).file.directory.lock
	hosts, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Dup3(hosts, lock, unix.O_CLOEXEC))
	require.False(t, locked())
	more := b.save(b.spans(2*mib), nil)
	require.True(t, locked())
	backuptest.Discard(more)
	b.driver.Reclaim.Drain()
	_, err = unix.Write(lock, []byte("still the host's"))
	require.NoError(t, err)
	require.NoError(t, unix.Close(lock))
	require.NoError(t, unix.Close(hosts))

	contents[0].Discard()
	b.driver.Reclaim.Drain()
	require.True(t, locked())
	contents[1].Discard()
	b.driver.Reclaim.Drain()
	require.False(t, locked())
	require.NoError(t, other.Close()) // before clean looks for it
}

func TestWithoutDirectIO(t *testing.T) {
	b := newBench(t)
	spans := b.spans(2 * mib)
	backuptest.Fill(spans, 1)
	contents := b.save(spans, nil)
	file := contents[0].(*diskContents).file
	buffer := make([]byte, mib)

	// Buffered: writing and reading leave nothing in the page cache.
	fd, err := unix.Open(file.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	open := &openFile{file: file, mode: unix.O_RDWR, fd: fd, chunks: 1}
	require.NoError(t, open.write(backuptest.Bytes(spans[0])[:mib], 0))
	require.NoError(t, open.read(buffer, 0))
	require.Equal(t, backuptest.Bytes(spans[0])[:mib], buffer)
	open.done()

	// A file system that refuses only when it is used, as O_DIRECT does at an odd offset.
	fd, direct, err := file.open(unix.O_RDONLY, file.size)
	require.NoError(t, err)
	if !direct || inMemory(b.path) { // memory has no blocks: any offset will do
		closeFile(fd)
		backuptest.Discard(contents)
		t.Skip("no O_DIRECT here")
	}
	open = &openFile{file: file, fd: fd, chunks: 1}
	open.direct.Store(true)
	require.NoError(t, open.read(buffer, 1))
	require.Equal(t, backuptest.Bytes(spans[0])[1:mib+1], buffer)
	require.False(t, open.direct.Load())
	open.done()
}

// The host closes descriptors in the middle of a transfer, and has files of its own at the numbers.
func TestFileIsOpenedAgain(t *testing.T) {
	b := newBench(t)
	spans := b.spans(2 * mib)
	backuptest.Fill(spans, 1)
	contents := b.save(spans, nil)
	file := contents[0].(*diskContents).file
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("the host's"), 0o600))
	hosts, err := unix.Open(other, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	half := make([][]byte, 2) // as O_DIRECT wants them
	for i := range half {
		half[i] = backuptest.Bytes(spans[0])[i*mib : (i+1)*mib]
	}
	for _, mode := range []int{unix.O_WRONLY, unix.O_RDONLY} {
		open := &openFile{file: file, mode: mode, fd: -1, chunks: 2}
		move := open.write
		if mode == unix.O_RDONLY {
			backuptest.Wipe(spans)
			move = open.read
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
	backuptest.RequireFilled(t, spans, 1)
	text, err := os.ReadFile(other)
	require.NoError(t, err)
	require.Equal(t, "the host's", string(text))
	require.NoError(t, unix.Close(hosts))
}

// Every error of a directory has a text of its own, which names the setting that the directory came from.
func TestErrorsNameTheSetting(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(b.path, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for setting, words := range map[string]string{
		"TMS_DISK_BACKUP_DIR":     "; set TMS_DISK_BACKUP_DIR to a directory",
		"tms_set_disk_backup_dir": "; call tms_set_disk_backup_dir with a directory",
		"TMPDIR":                  "; TMPDIR names it: set that, or TMS_DISK_BACKUP_DIR, to a directory",
		"":                        "; it is the default: set TMS_DISK_BACKUP_DIR to a directory",
	} {
		err := b.disk.Configure(file, setting)
		require.ErrorIs(t, err, ErrFailed)
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
			require.ErrorIs(t, err, ErrFailed)
			require.ErrorIs(t, err, cause)
			require.ErrorContains(t, err, what)
			if cause == unix.ENOSPC {
				require.ErrorContains(t, err, strings.TrimPrefix(words, "; "))
			}
		}
	}
}

// BenchmarkDisk saves and loads 3 GiB under TMS_DISK_BACKUP_DIR, or where tests have their files.
func BenchmarkDisk(b *testing.B) {
	if path := os.Getenv("TMS_DISK_BACKUP_DIR"); path != "" {
		b.Setenv("TMPDIR", path)
	}
	w := newBench(b)
	w.disk.chunkSize = stagingSize
	spans := w.spans(1024*mib, 1024*mib, 1024*mib)
	// Data that a disk cannot compress.
	block := make([]byte, 64*mib)
	_, _ = rand.NewChaCha8([32]byte{}).Read(block)
	for _, span := range spans {
		for bytes := backuptest.Bytes(span); len(bytes) > 0; bytes = bytes[len(block):] {
			copy(bytes, block)
		}
	}
	var kept []backup.Contents
	timed := func(what string, f func()) {
		start := time.Now()
		f()
		b.ReportMetric(3072*mib/1e6/time.Since(start).Seconds(), what+"-MB/s")
	}
	for b.Loop() {
		timed("save", func() { kept = w.save(spans, nil) })
		timed("overwrite", func() { kept = w.save(spans, kept) })
		timed("load", func() { require.NoError(b, w.load(spans, kept)) })
		start := time.Now()
		backuptest.Discard(kept)
		b.ReportMetric(float64(time.Since(start).Microseconds())/3, "us/discard")
		w.driver.Reclaim.Drain()
		b.ReportMetric(float64(time.Since(start).Milliseconds())/3, "ms/drain")
	}
}

// A file that could not be completed, and that the system refuses to remove for a while, is removed once the system
// allows it.
func TestUnmadeFilesGo(t *testing.T) {
	for fails, nth := range map[string]int{"fallocate": 1, "fstat": 2} { // the first fstat is of the directory
		b := newBench(t)
		calls := 0
		failpoint.Set(func(call string) error {
			if call == fails {
				calls++
			}
			if call == "unlink" || call == fails && calls == nth {
				return unix.EIO
			}
			return nil
		})
		_, err := b.trySave(b.spans(2*mib), nil)
		require.ErrorIs(t, err, ErrFailed)
		b.driver.Reclaim.Drain()
		require.Len(t, b.files(), 1, fails)
		failpoint.Set(nil)
		b.clean(0)
	}
}
