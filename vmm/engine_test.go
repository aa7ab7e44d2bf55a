package vmm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

const mib = 1 << 20

func TestMain(m *testing.M) {
	os.Exit(hermetic.Main(m, func() error { // once, not in each test
		_, err := cudasim.Library()
		return err
	}))
}

// simulated returns a fresh simulator and an engine on it.
func simulated(t testing.TB, devices int) (*cudasim.Sim, *cuda.Driver, *vmm.Engine) {
	t.Helper()
	return simulatedWith(t, devices, "1G")
}

// simulatedWith is simulated with so much memory on each device.
func simulatedWith(t testing.TB, devices int, memory string) (*cudasim.Sim, *cuda.Driver, *vmm.Engine) {
	t.Helper()
	t.Setenv("CUDASIM_DEVICES", fmt.Sprint(devices))
	t.Setenv("CUDASIM_MEMORY", memory)
	sim := cudasim.Start(t)
	driver, err := cuda.Open(sim.Path)
	require.NoError(t, err)
	engine := vmm.NewOn(driver)
	t.Cleanup(func() {
		engine.Trim()
		engine.Drain()
		for _, name := range []string{"handles", "mappings", "registered_bytes", "streams"} {
			require.Zero(t, sim.Stat(name), "%s left over", name)
		}
	})
	return sim, driver, engine
}

// mallocs makes count allocations. At its end the test frees those that are left.
func mallocs(t testing.TB, engine *vmm.Engine, count int, r vmm.Request) (addresses []uintptr) {
	t.Helper()
	t.Cleanup(func() {
		for _, a := range addresses {
			if err := engine.Free(a, false); !errors.Is(err, vmm.ErrInvalidAddress) {
				require.NoError(t, err)
			}
		}
	})
	for range count {
		a, err := engine.Malloc(r)
		require.NoError(t, err)
		addresses = append(addresses, a)
	}
	return addresses
}

func malloc(t testing.TB, engine *vmm.Engine, r vmm.Request) uintptr {
	t.Helper()
	return mallocs(t, engine, 1, r)[0]
}

func frees(t testing.TB, engine *vmm.Engine, addresses ...uintptr) {
	t.Helper()
	for _, a := range addresses {
		require.NoError(t, engine.Free(a, false))
	}
}

// at makes every call of a name ask f first, until end is called.
func at(call string, f func() error) (end func()) {
	failpoint.Set(func(made string) error {
		if made == call {
			return f()
		}
		return nil
	})
	return func() { failpoint.Set(nil) }
}

func pause(e *vmm.Engine, o vmm.Options) error {
	_, err := e.Pause(o)
	return err
}

func resume(e *vmm.Engine, o vmm.Options) error {
	_, err := e.Resume(o)
	return err
}

func cycle(t testing.TB, e *vmm.Engine, o vmm.Options) {
	t.Helper()
	require.NoError(t, pause(e, o))
	require.NoError(t, resume(e, o))
}

// simulated device memory can be read and written where it is mapped.
func bytesAt(address uintptr, size int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), size)
}

func fill(address uintptr, size int, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	for at := uintptr(0); at+8 <= uintptr(size); at += 512 {
		*wordAt(address + at) = random.Uint64()
	}
}

func requireFilled(t *testing.T, address uintptr, size int, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	for at := uintptr(0); at+8 <= uintptr(size); at += 512 {
		if *wordAt(address + at) != random.Uint64() {
			t.Fatalf("contents of %#x differ at byte %d", address, at)
		}
	}
}

// filled makes allocations, each with contents by its place.
func filled(t *testing.T, engine *vmm.Engine, count int, r vmm.Request) []uintptr {
	t.Helper()
	all := mallocs(t, engine, count, r)
	for i, a := range all {
		fill(a, int(r.Size), uint64(i))
	}
	return all
}

// requireAll checks allocations of filled.
func requireAll(t *testing.T, all []uintptr, size int) {
	t.Helper()
	for i, a := range all {
		requireFilled(t, a, size, uint64(i))
	}
}

func name(tag string) vmm.Options { return vmm.Options{Tags: []string{tag}} }

func TestAddressesAndContentsReturn(t *testing.T) {
	sim, _, engine := simulated(t, 2)
	sizes := []uint64{1, 511, 2 * mib, 2*mib + 1, 20 * mib, 300}
	var addresses []uintptr
	for i, size := range sizes {
		a := malloc(t, engine, vmm.Request{Size: size, Device: i % 2, Tag: "t", Backup: vmm.BackupHost})
		fill(a, int(size), uint64(i))
		addresses = append(addresses, a)
	}
	for range 3 {
		require.NoError(t, pause(engine, name("t")))
		require.Zero(t, sim.Stat("handle_bytes"))
		require.NoError(t, resume(engine, name("t")))
		for i, a := range addresses {
			requireFilled(t, a, int(sizes[i]), uint64(i))
		}
	}
	frees(t, engine, addresses...)
	for _, a := range addresses {
		require.ErrorIs(t, engine.Free(a, false), vmm.ErrInvalidAddress)
	}
}

// A pause that saves all keeps what has no backup, until the resume: the next pause loses it again.
func TestSaveAll(t *testing.T) {
	_, _, engine := simulated(t, 1)
	none := malloc(t, engine, vmm.Request{Size: 3 * mib, Tag: "none"})
	for i, retain := range []bool{false, true} {
		fill(none, 3*mib, uint64(i))
		require.NoError(t, pause(engine, vmm.Options{SaveAll: true}))
		held, err := engine.Records().Stats()
		require.NoError(t, err)
		require.Zero(t, held.Devices[0].Tags[0].WithoutContents)
		require.NoError(t, resume(engine, vmm.Options{RetainBackup: retain}))
		requireFilled(t, none, 3*mib, uint64(i))
		require.NoError(t, pause(engine, vmm.Options{RetainBackup: retain}))
		held, err = engine.Records().Stats()
		require.NoError(t, err)
		require.EqualValues(t, 4*mib, held.Devices[0].Tags[0].WithoutContents)
		require.Zero(t, held.Devices[0].Tags[0].HostBytes)
		require.NoError(t, resume(engine, vmm.Options{}))
	}
}

func TestStatsAddUp(t *testing.T) {
	_, _, engine := simulated(t, 1)
	malloc(t, engine, vmm.Request{Size: 3 * mib, Tag: "a", Backup: vmm.BackupHost})
	malloc(t, engine, vmm.Request{Size: 1 * mib, Tag: "b"})
	require.NoError(t, pause(engine, name("a")))
	held, err := engine.Records().Stats()
	require.NoError(t, err)
	require.Len(t, held.Devices, 1)
	require.Equal(t, uint64(1<<30), held.Devices[0].TotalBytes)
	require.Equal(t, uint64(1<<30-2*mib), held.Devices[0].FreeBytes)
	tags := held.Devices[0].Tags
	require.Len(t, tags, 2)
	require.Positive(t, tags[0].LastPauseSeconds)
	require.WithinDuration(t, time.Now(), time.UnixMilli(int64(tags[0].PausedSince*1000)), time.Minute)
	tags[0].LastPauseSeconds, tags[0].PausedSince = 0, 0
	require.Equal(t, stats.Tag{Tag: "a", Segments: 1, LiveBytes: 3 * mib, PausedBytes: 4 * mib,
		SlackBytes: mib, BackupBytes: 4 * mib, HostBytes: 4 * mib}, tags[0])
	require.Equal(t, stats.Tag{Tag: "b", Segments: 1, LiveBytes: mib, PhysicalBytes: 2 * mib,
		SlackBytes: mib, PauseWithoutContents: 2 * mib}, tags[1])
	require.NoError(t, pause(engine, name("b")))
	require.Equal(t, [2][2]uint64{{0, 0}, {2 * mib, 0}}, withoutContents(t, engine))
	require.NoError(t, resume(engine, vmm.Options{}))
	_, err = engine.Pause(vmm.Options{Tags: []string{"a"}, Discard: true})
	require.NoError(t, err)
	require.Equal(t, [2][2]uint64{{4 * mib, 0}, {0, 2 * mib}}, withoutContents(t, engine))
}

// withoutContents returns, for each tag, what is paused without contents and what a pause would free without contents.
func withoutContents(t *testing.T, engine *vmm.Engine) (of [2][2]uint64) {
	t.Helper()
	stats, err := engine.Records().Stats()
	require.NoError(t, err)
	for i, tag := range stats.Devices[0].Tags {
		of[i] = [2]uint64{tag.WithoutContents, tag.PauseWithoutContents}
	}
	return of
}

func TestThreadContextIsLeftAlone(t *testing.T) {
	_, driver, engine := simulated(t, 2)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, driver.CtxSetCurrent(0))
	// A thread without a context gets the device's, as a runtime call would give it.
	a := malloc(t, engine, vmm.Request{Size: mib, Device: 1, Tag: "t"})
	mine, err := driver.CtxGetCurrent()
	require.NoError(t, err)
	require.NotZero(t, mine)
	// With one it is left alone, whatever device the work is on.
	b := malloc(t, engine, vmm.Request{Size: mib, Device: 0, Tag: "t", Backup: vmm.BackupHost})
	cycle(t, engine, vmm.Options{})
	frees(t, engine, b, a)
	now, err := driver.CtxGetCurrent()
	require.NoError(t, err)
	require.Equal(t, mine, now)
}

// A resume that fails, at whatever call, holds no memory.
func TestAFailedResumeHoldsNothing(t *testing.T) {
	t.Setenv("CUDASIM_GRANULARITY", fmt.Sprint(64*kib)) // so that the memory touched is little
	sim, _, engine := simulated(t, 2)
	const size = 96 * kib
	var addresses []uintptr
	for device := range 2 {
		r := vmm.Request{Size: size, Device: device, Tag: "t", Backup: vmm.BackupHost}
		addresses = append(addresses, filled(t, engine, 3, r)...)
	}
	points := 0
	for _, call := range []string{"cuCtxPushCurrent", "cuStreamCreate", "cuStreamSynchronize", "cuMemcpyHtoDAsync",
		"cuMemCreate", "cuMemMap", "cuMemSetAccess"} {
		for nth := 1; ; nth++ {
			require.NoError(t, pause(engine, name("t")))
			engine.Drain() // its calls must not take the failure
			fired := sim.FailuresFired()
			sim.Fail(call, nth, 999)
			err := resume(engine, name("t"))
			if sim.FailuresFired() == fired {
				sim.ClearFailures()
				require.NoError(t, err)
				break
			}
			if points++; err != nil {
				require.Zero(t, sim.Stat("handles"), "%s %d", call, nth)
				require.NoError(t, resume(engine, name("t")))
			}
			requireAll(t, addresses[:3], size)
			requireAll(t, addresses[3:], size)
		}
	}
	require.Greater(t, points, 30)
}

func TestDeferredFrees(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: mib, Tag: "t", Capturing: true})
	require.NoError(t, engine.Free(a, true))
	require.ErrorIs(t, engine.Free(a, true), vmm.ErrInvalidAddress)
	require.Equal(t, uint64(1), sim.Stat("handles"))
	require.ErrorIs(t, pause(engine, vmm.Options{Capturing: true}), vmm.ErrCapturing)
	// A free that its caller believes done stays on the list until it is made.
	sim.Fail("cuMemUnmap", 1, 999)
	engine.FreeDeferred()
	require.EqualValues(t, 1, sim.Stat("handles"))
	engine.FreeDeferred()
	require.Zero(t, sim.Stat("handles"))

	// Memory short: what waits is freed before giving up.
	a = malloc(t, engine, vmm.Request{Size: 1000 * mib, Tag: "t"})
	require.NoError(t, engine.Free(a, true))
	malloc(t, engine, vmm.Request{Size: 1000 * mib, Tag: "t"})
}

func TestManyThreads(t *testing.T) {
	_, driver, engine := simulated(t, 2)
	var done atomic.Bool
	var workers, pausers sync.WaitGroup
	tags := []string{"a", "b", "c"}
	for w := range 16 {
		workers.Go(func() {
			runtime.LockOSThread() // for good: this needs a thread of its own, without another test's context
			_ = driver.CtxSetCurrent(0)
			random := rand.New(rand.NewPCG(uint64(w), 3))
			for range 60 {
				size := 1 + random.IntN(3*mib)
				kind := vmm.BackupKind(random.IntN(2))
				a, err := engine.Malloc(vmm.Request{Size: uint64(size), Device: w % 2, Tag: tags[w%3], Backup: kind})
				if err != nil {
					t.Errorf("malloc: %v", err)
					return
				}
				_, _ = engine.BackupPointer(a, 1, false)
				if err := engine.Free(a, false); err != nil {
					t.Errorf("free: %v", err)
				}
			}
		})
	}
	for p := range 3 {
		pausers.Go(func() {
			for !done.Load() {
				for _, operation := range []func(*vmm.Engine, vmm.Options) error{pause, resume} {
					if err := operation(engine, vmm.Options{Tags: tags[p : p+1], RetainBackup: p == 0}); err != nil {
						t.Errorf("transition: %v", err)
					}
					if _, err := engine.Records().Stats(); err != nil {
						t.Errorf("stats: %v", err)
					}
					time.Sleep(50 * time.Microsecond) // the others are to have the processor too
				}
			}
		})
	}
	workers.Wait()
	done.Store(true)
	pausers.Wait()
}

// writeAt changes one byte of simulated device memory.
func writeAt(address uintptr, value byte) { bytesAt(address, 1)[0] = value }

func TestIncrementalPausesCopyWhatChanged(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 16 * mib
	copied := func() uint64 {
		t.Helper()
		held, err := engine.Records().Stats()
		require.NoError(t, err)
		return held.Devices[0].Pauses.ContentsBytes
	}
	pause := func() uint64 {
		t.Helper()
		before := copied()
		cycle(t, engine, name("t"))
		return copied() - before
	}
	var addresses []uintptr
	for i := range 3 {
		a := malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost, Incremental: i < 2})
		fill(a, size, uint64(i))
		addresses = append(addresses, a)
	}
	require.Equal(t, uint64(3*size), pause())
	require.Equal(t, uint64(size), pause(), "unchanged blocks were copied")
	// The last byte of a block, two neighbouring blocks, and the last block.
	written := []uintptr{addresses[0] + 2*mib - 1, addresses[1] + 4*mib, addresses[1] + 6*mib, addresses[1] + size - 1}
	for _, a := range written {
		writeAt(a, 1)
	}
	require.Equal(t, uint64(size+4*2*mib), pause())
	for _, a := range written {
		require.Equal(t, byte(1), bytesAt(a, 1)[0])
	}
	for i, a := range addresses { // two of the four bytes go back to what they were
		fill(a, size, uint64(i))
	}
	require.Equal(t, uint64(size+2*2*mib), pause())
	// Trimming gives up the copies, so everything is copied again.
	engine.Trim()
	require.Equal(t, uint64(3*size), pause())
	requireAll(t, addresses, size)
}

// A discarding pause copies nothing, gives up what is kept, and leaves memory that is already paused as it is.
func TestDiscard(t *testing.T) {
	sim, _, engine := simulated(t, 2)
	const size = 8 * mib
	discard := func(tag string) {
		t.Helper()
		o := name(tag)
		o.Discard = true
		o.DiskDir = "/nowhere/to/be/found" // is not looked for
		freed, err := engine.Pause(o)
		require.NoError(t, err)
		require.EqualValues(t, 5*size, freed)
	}
	var all []uintptr
	for i, r := range []vmm.Request{{}, {Backup: vmm.BackupHost}, {Backup: vmm.BackupHost, Incremental: true},
		{Backup: vmm.BackupDisk}, {Backup: vmm.BackupPeer, Target: -1}} {
		r.Size, r.Tag = size, "t"
		a := malloc(t, engine, r)
		fill(a, size, uint64(i))
		all = append(all, a)
	}
	require.NoError(t, engine.Prepare(nil)())
	require.Positive(t, sim.Stat("registered_bytes"))
	copies := sim.Stat("calls:cuMemcpyDtoHAsync_v2")
	hashes := sim.Stat("calls:cuLaunchKernel")
	discard("t")
	engine.Drain()
	require.Zero(t, sim.Stat("registered_bytes"))
	require.Zero(t, sim.Stat("handles"))
	require.NoError(t, resume(engine, name("t")))
	require.Equal(t, copies, sim.Stat("calls:cuMemcpyDtoHAsync_v2"))
	require.Equal(t, hashes, sim.Stat("calls:cuLaunchKernel"))
	for i, a := range all {
		require.Zero(t, bytesAt(a, 1)[0], "contents of %d are back", i)
		fill(a, size, uint64(10+i))
	}

	// Discarding takes the copy of the incremental memory, and the next pause makes another.
	o := name("t")
	o.DiskDir = t.TempDir()
	require.NoError(t, pause(engine, o))
	o.Discard = true
	require.NoError(t, pause(engine, o)) // of what is paused: nothing
	require.NoError(t, resume(engine, name("t")))
	kept := func() {
		t.Helper()
		for i, a := range all[1:] {
			requireFilled(t, a, size, uint64(11+i))
		}
	}
	kept()

	// When it fails, everything is as before; what is kept of the incremental one counts as changed.
	sim.Fail("cuMemUnmap", 2, 999)
	require.Error(t, pause(engine, o))
	kept()
	o.Discard = false
	cycle(t, engine, o)
	kept()
}

// A pause that fails half way may have overwritten part of the kept copy, so the next one copies everything.
func TestIncrementalAfterAFailedPause(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	const size = 8 * mib
	a := malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost, Incremental: true})
	for round, call := range []string{"cuMemcpyDtoHAsync_v2", "cuMemUnmap", "cuLaunchKernel", "cuMemRelease"} {
		fill(a, size, uint64(round))
		cycle(t, engine, name("t"))
		fill(a, size, uint64(100+round))
		sim.Fail(call, 1, 999)
		require.Error(t, pause(engine, name("t")), call)
		require.NoError(t, resume(engine, name("t")))
		requireFilled(t, a, size, uint64(100+round))
		cycle(t, engine, name("t"))
		requireFilled(t, a, size, uint64(100+round))
	}
}

func TestIncrementalOnADriverThatCannotHash(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	var notes []string
	vmm.HostOf(engine).SetWarn(func(line string) { notes = append(notes, line) })
	a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost, Incremental: true})
	fill(a, 4*mib, 1)
	for range 2 {
		sim.Fail("cuLaunchKernel", 1, int(cuda.NotSupported))
		cycle(t, engine, name("t"))
		requireFilled(t, a, 4*mib, 1)
	}
	require.Len(t, notes, 1)
	o := name("t")
	o.Verify = true
	sim.Fail("cuLaunchKernel", 1, int(cuda.NotSupported))
	require.ErrorIs(t, pause(engine, o), cuda.NotSupported, "a check that cannot be made is no success")
}

func TestVerifyNamesTheBlock(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 8 * mib
	o := name("t")
	o.Verify = true
	a := malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	fill(a, size, 1)
	require.NoError(t, pause(engine, o))
	copy, err := engine.BackupPointer(a, size, false)
	require.NoError(t, err)
	writeAt(copy+5*mib, ^bytesAt(copy+5*mib, 1)[0])
	err = resume(engine, o)
	require.ErrorIs(t, err, vmm.ErrContents)
	require.ErrorContains(t, err, `tag "t"`)
	require.ErrorContains(t, err, fmt.Sprintf("%#x", a))
	require.ErrorContains(t, err, "block 2 ")
	require.ErrorIs(t, resume(engine, o), vmm.ErrContents, "it is still paused")
	writeAt(copy+5*mib, ^bytesAt(copy+5*mib, 1)[0])
	require.NoError(t, resume(engine, o))
	requireFilled(t, a, size, 1)
}

// Progress can be read while a transition runs, and is forgotten afterwards.
func TestProgressInStats(t *testing.T) {
	_, _, engine := simulated(t, 1)
	malloc(t, engine, vmm.Request{Size: 8 * mib, Tag: "t", Backup: vmm.BackupHost})
	var during *stats.Progress
	end := at("mmap", func() error { // of host memory, before the contents are copied
		held, err := engine.Records().Stats()
		during = held.Devices[0].Progress
		return err
	})
	defer end()
	require.NoError(t, pause(engine, name("t")))
	require.Equal(t, &stats.Progress{Operation: "pause", Total: 8 * mib}, during)
	held, err := engine.Records().Stats()
	require.NoError(t, err)
	require.Nil(t, held.Devices[0].Progress)
}

// A process that locks its memory (mlockall) learns which limit it has met.
func TestLockedMemoryIsLimited(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(a, 4*mib, 1)
	end := at("mmap", func() error { return unix.EAGAIN })
	defer end()
	require.ErrorContains(t, pause(engine, name("t")), "raise ulimit -l")
	end()
	cycle(t, engine, name("t"))
	requireFilled(t, a, 4*mib, 1)
}
