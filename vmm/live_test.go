package vmm_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/internal/machine/hostmemory"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/store"
)

// hostBytes returns how many bytes of host memory hold contents.
func hostBytes(t *testing.T, engine *vmm.Engine) uint64 {
	t.Helper()
	return engine.Records().Recorded().Devices[0].Tags[0].HostBytes
}

var fresh = bytes.Repeat([]byte{0xff, 0x7f}, 1<<20) // as a resume with Poison fills it

// A sparse backup takes host memory only for blocks that are not zero. Zeros come back, whatever fresh memory has.
func TestSparse(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	const size = 21*mib + 5
	a := malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupSparse})
	fill(a, size, 1)
	contents := bytesAt(a, size)
	clear(contents[:2*mib])
	clear(contents[6*mib : 12*mib-1])
	contents[12*mib-1] = 1
	clear(contents[20*mib:]) // the last block is short
	wanted := bytes.Clone(contents)
	for _, o := range []vmm.Options{{Verify: true}, {RetainBackup: true}, {RetainBackup: true, Poison: true},
		{}} {
		o.Tags = []string{"t"}
		require.Zero(t, engine.Records().Recorded().Devices[0].Tags[0].PauseHostBytes)
		pins := sim.Stat("calls:cuMemHostRegister_v2")
		require.NoError(t, pause(engine, o))
		require.EqualValues(t, 14*mib, hostBytes(t, engine))
		if o.Poison {
			require.Equal(t, pins, sim.Stat("calls:cuMemHostRegister_v2"), "what was retained is used again")
		}
		filled := 0
		failpoint.Set(func(call string) error { // before each
			if call == "cuMemsetD32Async" {
				filled++
				copy(bytesAt(a, 2*mib), fresh)
				copy(bytesAt(a+6*mib, 4*mib), fresh)
				copy(bytesAt(a+20*mib, mib), fresh)
			}
			return nil
		})
		require.NoError(t, resume(engine, o))
		failpoint.Set(nil)
		require.True(t, bytes.Equal(wanted, bytesAt(a, size)))
	}
	sim.Fail("cuMemsetD32Async", 1, int(cuda.Unknown))
	require.NoError(t, pause(engine, name("t")))
	require.ErrorIs(t, resume(engine, name("t")), cuda.Unknown)
	require.NoError(t, resume(engine, name("t")))
	require.True(t, bytes.Equal(wanted, bytesAt(a, size)))

	// All of it is zero; nothing is.
	clear(bytesAt(a, size))
	require.NoError(t, pause(engine, name("t")))
	require.Zero(t, hostBytes(t, engine))
	require.NoError(t, resume(engine, vmm.Options{RetainBackup: true}))
	require.True(t, bytes.Equal(make([]byte, size), bytesAt(a, size)))
	fill(a, size, 2)
	cycle(t, engine, name("t"))
	requireFilled(t, a, size, 2)

	// A driver that cannot hash keeps all.
	var notes []string
	vmm.HostOf(engine).SetWarn(func(line string) { notes = append(notes, line) })
	sim.Fail("cuLaunchKernel", 1, int(cuda.NotSupported))
	clear(bytesAt(a, size))
	require.NoError(t, pause(engine, name("t")))
	require.EqualValues(t, 22*mib, hostBytes(t, engine))
	require.NoError(t, resume(engine, name("t")))
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "incremental or sparse backup: every pause copies everything: ")
}

// A hash could save nothing where less than a block is live.
func TestNothingLiveIsNotHashed(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	for _, r := range []vmm.Request{{Backup: vmm.BackupSparse}, {Backup: vmm.BackupHost, Incremental: true}} {
		r.Size, r.Tag = 16*mib, "t"
		a := malloc(t, engine, r)
		fill(a, 16*mib, 1)
		cycle(t, engine, name("t"))
		last := bytes.Clone(bytesAt(a+15*mib, mib))
		hashes := sim.Stat("calls:cuLaunchKernel")
		require.NotZero(t, hashes)
		require.NoError(t, engine.Live(a, 15*mib, nil)) // what the program has asked for, of segments of whole blocks
		require.NoError(t, pause(engine, name("t")))
		require.EqualValues(t, mib, hostBytes(t, engine))
		require.NoError(t, resume(engine, name("t")))
		require.True(t, bytes.Equal(last, bytesAt(a+15*mib, mib)))
		require.Equal(t, hashes, sim.Stat("calls:cuLaunchKernel"))
		cycle(t, engine, name("t"))
		require.Greater(t, sim.Stat("calls:cuLaunchKernel"), hashes)
		require.NoError(t, engine.Free(a, false))
	}
}

// What is live comes back to the byte, and takes as much host memory; the rest is as fresh memory. It counts for one
// pause.
func TestLive(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 16 * mib
	for _, r := range []vmm.Request{{Backup: vmm.BackupHost}, {Backup: vmm.BackupSparse},
		{Backup: vmm.BackupHost, Incremental: true}} {
		r.Size, r.Tag = size, "t"
		a := malloc(t, engine, r)
		fill(a, size, 1)
		wanted := bytes.Clone(bytesAt(a, size))
		o := vmm.Options{Poison: true, Verify: true}
		check := func(live ...store.Range) {
			t.Helper()
			restored := bytesAt(a, size)
			at := uint64(0)
			for _, r := range append(live, store.Range{Offset: size}) {
				size := min(r.Offset-at, mib)
				require.True(t, bytes.Equal(fresh[at%2:][:size], restored[at:][:size]))
				at = r.Offset + r.Size
				require.True(t, bytes.Equal(wanted[r.Offset:at], restored[r.Offset:at]))
			}
			copy(restored, wanted)
		}
		cycle(t, engine, o)
		check(store.Range{Size: size})
		for range 2 { // also over what an earlier one has kept
			live := []store.Range{{Offset: 9*mib + 4, Size: 3 * mib}, {Offset: mib - 8, Size: 100},
				{Offset: mib + 92, Size: 4}, {Offset: mib, Size: 8}, {Offset: 5, Size: 0}}
			require.NoError(t, engine.Live(a, size, live))
			require.NoError(t, pause(engine, o))
			require.EqualValues(t, 3*mib+104, hostBytes(t, engine))
			require.NoError(t, resume(engine, o))
			check(store.Range{Offset: mib - 8, Size: 104}, live[0])
		}
		require.NoError(t, pause(engine, o)) // the next one keeps all
		require.EqualValues(t, size, hostBytes(t, engine))
		require.NoError(t, resume(engine, o))
		check(store.Range{Size: size})

		require.NoError(t, engine.Live(a, size, nil))
		require.NoError(t, engine.Live(a+4*mib, 2*mib, []store.Range{{Size: 2 * mib}})) // replaces this part
		require.NoError(t, pause(engine, o))
		require.EqualValues(t, 2*mib, hostBytes(t, engine))
		require.NoError(t, resume(engine, o))
		check(store.Range{Offset: 4 * mib, Size: 2 * mib})
		require.NoError(t, engine.Free(a, false))
		engine.Trim()
	}
}

// Sparse memory of which parts are live keeps what is live and not in a block of zeros.
func TestSparseAndLive(t *testing.T) {
	_, _, engine := simulated(t, 1)
	const size = 12 * mib
	a := malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupSparse})
	fill(a, size, 1)
	clear(bytesAt(a, 4*mib))
	wanted := bytes.Clone(bytesAt(a, size))
	require.NoError(t, engine.Live(a, size, []store.Range{{Offset: mib, Size: 5 * mib}}))
	require.NoError(t, pause(engine, vmm.Options{Verify: true}))
	require.EqualValues(t, 2*mib, hostBytes(t, engine))
	require.NoError(t, resume(engine, vmm.Options{Verify: true, Poison: true}))
	require.True(t, bytes.Equal(wanted[:6*mib], bytesAt(a, 6*mib)))
	require.True(t, bytes.Equal(fresh, bytesAt(a+6*mib, 2*mib)))
}

// A pause that fails, at whatever step, keeps all at its next try: the program may have gone on in between.
func TestLiveCountsForOnePause(t *testing.T) {
	for _, call := range []string{"", "cuCtxRecordEvent", "cuMemHostRegister", "cuMemcpyDtoHAsync", "cuMemUnmap"} {
		t.Run(call, func(t *testing.T) { countsForOnePause(t, call) })
	}
}

func countsForOnePause(t *testing.T, call string) {
	sim, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 8 * mib, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, engine.Live(a, 8*mib, []store.Range{{Size: 2 * mib}}))
	require.EqualValues(t, 2*mib, engine.Records().Recorded().Devices[0].Tags[0].PauseHostBytes)
	if call != "" {
		sim.Fail(call, 1, int(cuda.Unknown))
	}
	require.Error(t, pause(engine, vmm.Options{Capturing: call == ""}), call)
	fill(a, 8*mib, 1)
	require.NoError(t, pause(engine, name("t")))
	require.ErrorContains(t, engine.Live(a, 8*mib, nil), "is paused: say what is live before a pause")
	require.NoError(t, resume(engine, name("t")))
	requireFilled(t, a, 8*mib, 1)

	// The program goes on without a pause.
	require.NoError(t, engine.Live(a, 8*mib, nil))
	engine.ForgetLive([]string{"other"})
	require.Zero(t, engine.Records().Recorded().Devices[0].Tags[0].PauseHostBytes)
	engine.ForgetLive([]string{"t"})
	cycle(t, engine, name("t"))
	requireFilled(t, a, 8*mib, 1)

	// Memory that is freed takes it along.
	require.NoError(t, engine.Live(a, 8*mib, nil))
	require.NoError(t, engine.Free(a, false))
	a = malloc(t, engine, vmm.Request{Size: 8 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(a, 8*mib, 2)
	cycle(t, engine, name("t"))
	requireFilled(t, a, 8*mib, 2)
}

func TestLiveIsRefused(t *testing.T) {
	_, _, engine := simulated(t, 1)
	all := filled(t, engine, 2, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost}) // side by side
	low, high := min(all[0], all[1]), max(all[0], all[1])
	require.Equal(t, low+4*mib, high)
	require.NoError(t, engine.Live(low+3*mib, 2*mib, []store.Range{{Offset: mib, Size: 1}}))
	require.EqualValues(t, 6*mib+1, engine.Records().Recorded().Devices[0].Tags[0].PauseHostBytes)
	for _, r := range []store.Range{{Offset: 9, Size: 0}, {Offset: 1, Size: 8}, {Offset: 8, Size: 1 << 63}} {
		require.Equal(t, 1, cuda.Code(engine.Live(low, 8, []store.Range{r})))
	}
	require.ErrorContains(t, engine.Live(low, 9*mib, nil), "is in no region")
	require.ErrorContains(t, engine.Live(low, ^uint64(0), nil), "is in no region")
	require.EqualValues(t, 6*mib+1, engine.Records().Recorded().Devices[0].Tags[0].PauseHostBytes, "nothing has changed")
	for _, kind := range []vmm.BackupKind{vmm.BackupDisk, vmm.BackupPeer} {
		other := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "other", Backup: kind, Target: -1})
		fill(other, 4*mib, 7)
		require.NoError(t, engine.Live(other, 4*mib, nil)) // without effect: all is kept
		cycle(t, engine, vmm.Options{Tags: []string{"other"}, DiskDir: t.TempDir()})
		requireFilled(t, other, 4*mib, 7)
		require.NoError(t, engine.Free(other, false))
	}
	small := malloc(t, engine, vmm.Request{Size: 1000, Tag: "small", Backup: vmm.BackupHost})
	fill(small, 1000, 5)
	none := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "none"})
	require.NoError(t, engine.Live(small, 1000, nil))
	require.NoError(t, engine.Live(none, 4*mib, nil))
	cycle(t, engine, name("small"))
	requireFilled(t, small, 1000, 5)
}

// A pause that the program is not told of saves what has no backup, and of that only what is live.
func TestLiveWithoutBackup(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 8 * mib, Tag: "t"})
	for _, live := range []uint64{2 * mib, 8 * mib} { // said of one pause alone
		fill(a, 8*mib, 1)
		if live < 8*mib {
			require.NoError(t, engine.Live(a, 8*mib, []store.Range{{Size: live}}))
			require.EqualValues(t, live, engine.Records().Recorded().Devices[0].Tags[0].PauseWithoutContents)
		}
		require.NoError(t, pause(engine, vmm.Options{Tags: []string{"t"}, SaveAll: true}))
		require.EqualValues(t, live, hostBytes(t, engine))
		require.NoError(t, resume(engine, name("t")))
		requireFilled(t, a, int(live), 1)
	}
}

// Host memory that is prepared for what is live serves the pause; files keep all.
func TestLivePreparedAndMoved(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 40 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(a, 40*mib, 1)
	live := []store.Range{{Offset: 2 * mib, Size: 4 * mib}}
	require.NoError(t, engine.Live(a, 40*mib, live))
	require.NoError(t, engine.Prepare(nil)())
	require.EqualValues(t, 4*mib, hostBytes(t, engine))
	pins := sim.Stat("calls:cuMemHostRegister_v2")
	o := vmm.Options{DiskDir: t.TempDir()}
	require.NoError(t, pause(engine, o))
	require.Equal(t, pins, sim.Stat("calls:cuMemHostRegister_v2"))
	require.EqualValues(t, 4*mib, hostBytes(t, engine))
	pointer, err := engine.BackupPointer(a, 8, false)
	require.NoError(t, err)
	require.Zero(t, pointer, "there is no whole copy")
	moved, err := engine.Move(o, vmm.BackupDisk)
	require.NoError(t, err)
	require.Zero(t, moved)
	require.NoError(t, resume(engine, o))
	wanted := bytesAt(a+2*mib, 4*mib)
	require.False(t, bytes.Equal(wanted, make([]byte, 4*mib)))

	fill(a, 40*mib, 2)
	require.NoError(t, engine.Live(a, 40*mib, live))
	o.ToDisk = true
	require.NoError(t, pause(engine, o))
	require.Zero(t, hostBytes(t, engine))
	require.NoError(t, resume(engine, o))
	requireFilled(t, a, 40*mib, 2)
	require.EqualValues(t, 2*mib, digest.BlockSize, "as tms.h and help(tms.region) say")
}

// Live waits for a pause that works on the memory, and is then refused.
func TestLiveDuringAPause(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 8 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(a, 8*mib, 1)
	said := make(chan error, 1)
	end := at("cuMemUnmap", func() error {
		go func() { said <- engine.Live(a, 8*mib, nil) }()
		time.Sleep(10 * time.Millisecond) // so that it most likely waits; it is refused in any case
		return nil
	})
	require.NoError(t, pause(engine, name("t")))
	end()
	require.ErrorContains(t, <-said, "is paused")
	require.NoError(t, resume(engine, name("t")))
	requireFilled(t, a, 8*mib, 1)
}

// What is retained serves a pause that it has room for; what is too small for one goes, and counts beside it before.
func TestLiveGrows(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 80 * mib, Tag: "t", Backup: vmm.BackupHost})
	o := vmm.Options{Tags: []string{"t"}, RetainBackup: true}
	for i, c := range []struct{ live, kept uint64 }{{40, 40}, {2, 40}, {60, 60}, {50, 60}, {0, 60}, {80, 80}, {6, 6}} {
		fill(a, 80*mib, uint64(i))
		part := bytesAt(a+10*mib, int(min(70, c.live)*mib))
		wanted := bytes.Clone(part)
		say := func() {
			if c.live < 80 { // else nothing is said, and all is live
				require.NoError(t, engine.Live(a, 80*mib, []store.Range{{Offset: 10 * mib, Size: c.live * mib}}))
			}
		}
		pins := sim.Stat("calls:cuMemHostRegister_v2")
		if say(); c.live > 0 && c.live < 80 {
			sim.Fail("cuMemcpyDtoHAsync", 1, int(cuda.Unknown))
			require.ErrorIs(t, pause(engine, o), cuda.Unknown)
			say()
		}
		require.NoError(t, pause(engine, o))
		require.EqualValues(t, c.kept*mib, hostBytes(t, engine))
		if c.live < c.kept {
			require.Equal(t, pins, sim.Stat("calls:cuMemHostRegister_v2"), "what is retained has room")
		}
		require.NoError(t, resume(engine, o))
		require.True(t, bytes.Equal(wanted, part))
		require.Eventually(t, func() bool { return sim.Stat("registered_bytes") == c.kept*mib }, time.Minute,
			time.Millisecond)
	}
}

// Memory that is allocated in slack is not what was freed there.
func TestLiveOfSlack(t *testing.T) {
	_, _, engine := simulated(t, 1)
	r := vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost}
	all := mallocs(t, engine, 2, r)
	cycle(t, engine, vmm.Options{ExtentBytes: 64 * mib})
	require.NoError(t, engine.Live(all[0], 4*mib, nil))
	require.NoError(t, engine.Free(all[0], false))
	a := malloc(t, engine, r)
	require.Equal(t, all[0], a)
	fill(a, 4*mib, 1)
	cycle(t, engine, name("t"))
	requireFilled(t, a, 4*mib, 1)
}

// Host memory goes with the contents that it was for, though they were saved together with others that stay.
func TestHostMemoryOfWhatStays(t *testing.T) {
	sim, _, e := simulatedWith(t, 1, "16G")
	const count, each = 32, 2 * mib
	pinned := func() uint64 {
		e.Drain()
		return sim.Stat("registered_bytes")
	}
	r := vmm.Request{Size: each, Tag: "t", Backup: vmm.BackupHost, Incremental: true}
	var stay []uintptr
	for i := range 4 {
		all := mallocs(t, e, count, r)
		fill(all[i%count], each, uint64(i))
		cycle(t, e, vmm.Options{})
		stay = append(stay, all[i%count])
		frees(t, e, all[:i%count]...)
		frees(t, e, all[i%count+1:]...)
		require.Less(t, pinned(), 2*uint64(len(stay))*each+33*mib, "after %d pauses", i)
	}
	cycle(t, e, vmm.Options{})
	require.Less(t, pinned(), (2*uint64(len(stay))+1)*each)
	for i, a := range stay {
		requireFilled(t, a, each, uint64(i))
	}
	frees(t, e, stay...)
	require.Less(t, pinned(), uint64(mib), "the content hash has some")

	r.Incremental = false
	all := mallocs(t, e, 2*count, r)
	require.NoError(t, pause(e, vmm.Options{}))
	require.GreaterOrEqual(t, pinned(), uint64(2*count*each))
	frees(t, e, all[1:]...)
	require.Less(t, pinned(), uint64(33*mib))
}

// What is retained of less than is live now does not count as room: the pause is refused before anything is taken.
func TestHostMemoryOfWhatGrows(t *testing.T) {
	available := hostmemory.Available("self", nil)
	if available == math.MaxUint64 {
		t.Skip("this machine does not say how much memory it has")
	}
	_, _, engine := simulatedWith(t, 2, "16T")
	size := available / 4 * 3 &^ (2*mib - 1)
	var addresses []uintptr
	live := func(bytes uint64) {
		for _, a := range addresses {
			require.NoError(t, engine.Live(a, size, []store.Range{{Size: bytes}}))
		}
	}
	for device := range 2 {
		r := vmm.Request{Size: size, Device: device, Tag: "t", Backup: vmm.BackupHost}
		addresses = append(addresses, malloc(t, engine, r))
	}
	live(2 * mib)
	cycle(t, engine, vmm.Options{RetainBackup: true})
	live(size - 2*mib)
	taken := 0
	end := at("mmap", func() error {
		taken++
		return unix.ENOMEM // rather than have the kernel end the test
	})
	defer end()
	var short *store.Shortage
	require.ErrorAs(t, pause(engine, name("t")), &short)
	require.Zero(t, taken)
	require.Equal(t, 2*(size-2*mib), short.Needed)
}
