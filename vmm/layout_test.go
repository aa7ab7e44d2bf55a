package vmm_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/cuda"
)

// shared makes a resume give neighbours common extents of up to 16 MiB.
func shared(tag string) vmm.Options {
	o := name(tag)
	o.ExtentBytes = 16 * mib
	return o
}

func mallocs(t *testing.T, engine *vmm.Engine, count int, r vmm.Request) []uintptr {
	t.Helper()
	var addresses []uintptr
	for range count {
		a, err := engine.Malloc(r)
		require.NoError(t, err)
		addresses = append(addresses, a)
	}
	return addresses
}

func tagStats(t *testing.T, engine *vmm.Engine, tag string) vmm.TagStats {
	t.Helper()
	stats, err := engine.Stats()
	require.NoError(t, err)
	for _, d := range stats.Devices {
		for _, ts := range d.Tags {
			if ts.Tag == tag {
				return ts
			}
		}
	}
	t.Fatalf("no tag %q", tag)
	return vmm.TagStats{}
}

func TestResumeSharesExtents(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	// Two tags by turns: neighbours are of one tag all the same.
	var mine, others []uintptr
	for i := range 20 {
		mine = append(mine, mallocs(t, engine, 1, vmm.Request{Size: 4 * mib, Tag: "mine", Backup: vmm.BackupHost})...)
		others = append(others, mallocs(t, engine, 1, vmm.Request{Size: 2 * mib, Tag: "others"})...)
		fill(mine[i], 4*mib, uint64(i))
	}
	require.Equal(t, uint64(40), sim.Stat("handles"))
	for range 3 {
		require.NoError(t, engine.Pause(shared("mine")))
		require.Equal(t, uint64(20), sim.Stat("handles"))
		require.NoError(t, engine.Resume(shared("mine")))
		require.Equal(t, uint64(20+5), sim.Stat("handles"), "4 segments of 4 MiB make an extent")
		for i, a := range mine {
			requireFilled(t, a, 4*mib, uint64(i))
		}
	}
	// Every second one goes: the memory stays with its neighbours, and serves the next of the size.
	for i := 0; i < 20; i += 2 {
		require.NoError(t, engine.Free(mine[i], false))
		require.ErrorIs(t, engine.Free(mine[i], false), vmm.ErrInvalidAddress)
	}
	require.Equal(t, uint64(40*mib), tagStats(t, engine, "mine").SlackBytes)
	creates := sim.Stat("calls:cuMemCreate")
	again := mallocs(t, engine, 1, vmm.Request{Size: 4*mib - 5, Tag: "mine", Backup: vmm.BackupHost})
	require.Equal(t, creates, sim.Stat("calls:cuMemCreate"))
	fill(again[0], 4*mib-5, 100)
	require.Equal(t, uint64(36*mib+5), tagStats(t, engine, "mine").SlackBytes)
	for i := 1; i < 20; i += 2 {
		requireFilled(t, mine[i], 4*mib, uint64(i))
	}
	// A pause leaves the slack behind.
	require.NoError(t, engine.Pause(shared("mine")))
	require.Equal(t, uint64(40*mib), sim.Stat("handle_bytes"))
	require.NoError(t, engine.Resume(shared("mine")))
	require.Equal(t, uint64(40*mib+44*mib), sim.Stat("handle_bytes"))
	requireFilled(t, again[0], 4*mib-5, 100)
	for i := 1; i < 20; i += 2 {
		requireFilled(t, mine[i], 4*mib, uint64(i))
		require.NoError(t, engine.Free(mine[i], false))
	}
	require.NoError(t, engine.Free(again[0], false))
	require.Equal(t, uint64(40*mib), sim.Stat("handle_bytes"))
	for _, a := range others {
		require.NoError(t, engine.Free(a, false))
	}
}

// halfFreed returns an engine whose memory is full but for free bytes, half of it slack of shared extents.
func halfFreed(t *testing.T, engine *vmm.Engine, free int) (kept []uintptr, filler uintptr) {
	t.Helper()
	all := mallocs(t, engine, 128, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
	for i, a := range all {
		fill(a, 4*mib, uint64(i))
	}
	require.NoError(t, engine.Pause(shared("t")))
	require.NoError(t, engine.Resume(shared("t")))
	filler = mallocs(t, engine, 1, vmm.Request{Size: uint64(512*mib - free), Tag: "filler"})[0]
	for i, a := range all {
		if i%2 == 0 {
			require.NoError(t, engine.Free(a, false))
		} else {
			kept = append(kept, a)
		}
	}
	return kept, filler
}

func TestSlackIsGivenBackWhenMemoryIsShort(t *testing.T) {
	for _, c := range []struct {
		name string
		free int
	}{{"on the device", 32 * mib}, {"through the host", 0}} {
		t.Run(c.name, func(t *testing.T) {
			sim, _, engine := simulated(t, 1)
			kept, filler := halfFreed(t, engine, c.free)
			// Another tag, so slack does not serve.
			request := vmm.Request{Size: 200 * mib, Tag: "big"}
			_, err := engine.Malloc(request)
			require.ErrorIs(t, err, cuda.OutOfMemory)
			require.Equal(t, uint64(200*mib), engine.Shrink(0, 200*mib))
			big := mallocs(t, engine, 1, request)[0]
			requireAll := func() {
				t.Helper()
				for i, a := range kept {
					requireFilled(t, a, 4*mib, uint64(2*i+1))
				}
			}
			requireAll()
			// What is asked for from outside is also found.
			require.Equal(t, uint64(56*mib), engine.Shrink(0, 1<<40))
			require.Zero(t, engine.Shrink(0, 1<<40))
			require.Zero(t, tagStats(t, engine, "t").SlackBytes)
			requireAll()
			require.NoError(t, engine.Pause(shared("t")))
			require.NoError(t, engine.Resume(shared("t")))
			requireAll()
			for _, a := range append(kept, filler, big) {
				require.NoError(t, engine.Free(a, false))
			}
			require.Zero(t, sim.Stat("handle_bytes"))
			require.Equal(t, uint64(1), sim.Stat("reservations"), "the shadow addresses are given back")
		})
	}
}

func TestEveryStepOfAShrinkFails(t *testing.T) {
	calls := []string{"cuCtxSynchronize", "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
		"cuMemcpyDtoDAsync", "cuStreamSynchronize", "cuMemUnmap", "cuMemRelease", "cuMemcpyDtoHAsync",
		"cuMemHostRegister", "cuMemcpyHtoDAsync", "cuStreamCreate"}
	points := 0
	for _, free := range []int{64 * mib, 0} {
		sim, _, engine := simulated(t, 1)
		engine.Warn(func(string) {})
		var kept []uintptr
		intact := func() {
			t.Helper()
			for i, a := range kept {
				requireFilled(t, a, 4*mib, uint64(i))
			}
		}
		for _, call := range calls {
			for nth := 1; ; nth++ {
				all := mallocs(t, engine, 8, vmm.Request{Size: 4 * mib, Tag: "t"})
				require.NoError(t, engine.Pause(shared("t")))
				require.NoError(t, engine.Resume(shared("t")))
				kept = []uintptr{all[1], all[4], all[5], all[7]}
				for _, i := range []int{0, 2, 3, 6} {
					require.NoError(t, engine.Free(all[i], false))
				}
				for i, a := range kept {
					fill(a, 4*mib, uint64(i))
				}
				filler := mallocs(t, engine, 1, vmm.Request{Size: uint64(1024*mib - 32*mib - free), Tag: "filler"})
				engine.Drain()
				fired := sim.FailuresFired()
				sim.Fail(call, nth, 999)
				freed := engine.Shrink(0, 1<<40)
				happened := sim.FailuresFired() > fired
				sim.ClearFailures()
				if tagStats(t, engine, "t").PausedBytes > 0 {
					require.NoError(t, engine.Resume(shared("t")), "%s %d", call, nth)
				}
				intact()
				if happened {
					points++
				} else {
					require.Equal(t, uint64(16*mib), freed)
				}
				engine.Shrink(0, 1<<40)
				require.Equal(t, uint64(1024*mib-16*mib-free), sim.Stat("handle_bytes"), "%s %d", call, nth)
				intact()
				for _, a := range append(kept, filler...) {
					require.NoError(t, engine.Free(a, false))
				}
				require.Zero(t, sim.Stat("handles"), "%s %d", call, nth)
				if !happened {
					break
				}
			}
		}
	}
	t.Logf("%d failure points", points)
	require.Greater(t, points, 30)
}

func TestSmallAllocationsShareGranules(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	const count = 10000
	addresses := mallocs(t, engine, count, vmm.Request{Size: 4096, Tag: "small", Backup: vmm.BackupHost})
	require.LessOrEqual(t, sim.Stat("handle_bytes"), uint64(44*mib))
	seen := map[uintptr]bool{}
	for i, a := range addresses {
		require.Zero(t, a%512)
		require.False(t, seen[a])
		seen[a] = true
		fill(a, 4096, uint64(i))
	}
	ts := tagStats(t, engine, "small")
	require.Equal(t, count, ts.Segments)
	require.Equal(t, uint64(count*4096), ts.LiveBytes)
	require.NoError(t, engine.Pause(shared("small")))
	require.Zero(t, sim.Stat("handle_bytes"))
	p, err := engine.BackupPointer(addresses[77]+8, 4088)
	require.NoError(t, err)
	require.Equal(t, bytesAt(p, 8), bytesAt(p, 8))
	_, err = engine.BackupPointer(addresses[77], 4097)
	require.ErrorIs(t, err, vmm.ErrInvalidAddress)
	require.NoError(t, engine.Free(addresses[0], false), "while paused")
	require.ErrorIs(t, engine.Free(addresses[1]+512, false), vmm.ErrInvalidAddress)
	// Meanwhile others are made, in granules of their own: they are active.
	more := mallocs(t, engine, 3, vmm.Request{Size: 100, Tag: "small", Backup: vmm.BackupHost})
	fill(more[0], 100, 1)
	require.NoError(t, engine.Resume(shared("small")))
	for i, a := range addresses[1:] {
		requireFilled(t, a, 4096, uint64(i+1))
	}
	require.Equal(t, -1, engine.DeviceOf(addresses[0]))
	require.Equal(t, 0, engine.DeviceOf(addresses[1]+4095))
	for _, a := range append(addresses[1:], more...) {
		require.NoError(t, engine.Free(a, false))
		require.ErrorIs(t, engine.Free(a, false), vmm.ErrInvalidAddress)
	}
	require.Zero(t, sim.Stat("handle_bytes"), "every granule has gone back")
}

// Policies and tags do not share granules: what is paused, or kept, is so by the granule.
func TestSmallAllocationsOfOneKindOnly(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	var all []uintptr
	for _, r := range []vmm.Request{
		{Size: 512, Tag: "a"}, {Size: 512, Tag: "b"}, {Size: 512, Tag: "a", Backup: vmm.BackupHost},
		{Size: 512, Tag: "a", Backup: vmm.BackupHost, Incremental: true},
	} {
		all = append(all, mallocs(t, engine, 2, r)...)
	}
	require.Equal(t, uint64(4), sim.Stat("handles"))
	for _, a := range all {
		require.NoError(t, engine.Free(a, false))
	}
}

// A free that fails leaves the allocation, small or large, as it was.
func TestSmallFreeFails(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	all := mallocs(t, engine, 2, vmm.Request{Size: 512, Tag: "t", Backup: vmm.BackupHost})
	for _, a := range all {
		for _, call := range []string{"cuCtxSynchronize", "cuMemUnmap", "cuMemRelease"} {
			fired := sim.FailuresFired()
			sim.Fail(call, 1, 999)
			err := engine.Free(a, false)
			if sim.FailuresFired() == fired {
				sim.ClearFailures()
				require.NoError(t, err) // it was not the last of the granule: the driver was not needed
				break
			}
			require.ErrorIs(t, err, cuda.Unknown)
			require.Equal(t, 0, engine.DeviceOf(a))
			require.NoError(t, engine.Pause(name("t")))
			require.NoError(t, engine.Resume(name("t")))
		}
		_ = engine.Free(a, false)
	}
	require.Zero(t, sim.Stat("handles"))
}

func TestSmallSizesByChance(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	random := rand.New(rand.NewPCG(5, 6))
	type live struct {
		address uintptr
		size    int
		seed    uint64
	}
	var all []live
	for step := range 20000 {
		if len(all) > 0 && random.IntN(100) < 48 {
			i := random.IntN(len(all))
			requireFilled(t, all[i].address, all[i].size, all[i].seed)
			require.NoError(t, engine.Free(all[i].address, false))
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
			continue
		}
		size := 1 + random.IntN(1<<(3+random.IntN(19)))
		a, err := engine.Malloc(vmm.Request{Size: uint64(size), Tag: "t", Backup: vmm.BackupHost})
		if err != nil {
			require.ErrorIs(t, err, cuda.OutOfMemory)
			continue
		}
		fill(a, size, uint64(step))
		all = append(all, live{a, size, uint64(step)})
		if step%4000 == 3999 {
			require.NoError(t, engine.Pause(shared("t")))
			require.NoError(t, engine.Resume(shared("t")))
		}
	}
	var bytes uint64
	for _, l := range all {
		requireFilled(t, l.address, l.size, l.seed)
		bytes += uint64(l.size)
	}
	ts := tagStats(t, engine, "t")
	require.Equal(t, bytes, ts.LiveBytes)
	require.Equal(t, len(all), ts.Segments)
	for _, l := range all {
		require.NoError(t, engine.Free(l.address, false))
	}
	require.Zero(t, sim.Stat("handle_bytes"))
}

func TestPoison(t *testing.T) {
	_, _, engine := simulated(t, 1)
	lost := mallocs(t, engine, 1, vmm.Request{Size: 3 * mib, Tag: "t"})[0]
	kept := mallocs(t, engine, 1, vmm.Request{Size: 3 * mib, Tag: "t", Backup: vmm.BackupHost})[0]
	fill(lost, 3*mib, 1)
	fill(kept, 3*mib, 2)
	o := shared("t")
	o.Poison = true
	require.NoError(t, engine.Pause(o))
	require.NoError(t, engine.Resume(o))
	requireFilled(t, kept, 3*mib, 2)
	for _, at := range []uintptr{0, mib, 3*mib - 4} {
		require.Equal(t, []byte{0xff, 0x7f, 0xff, 0x7f}, bytesAt(lost+at, 4))
	}
	require.NoError(t, engine.Free(lost, false))
	require.NoError(t, engine.Free(kept, false))
}

func TestStatsNameWhatHoldsMemory(t *testing.T) {
	_, driver, engine := simulated(t, 2)
	a := mallocs(t, engine, 1, vmm.Request{Size: 3 * mib, Tag: "a", Backup: vmm.BackupPeer, Target: 1})[0]
	b := mallocs(t, engine, 1, vmm.Request{Size: 5 * mib, Device: 1, Tag: "b"})[0]
	other, err := driver.MemCreate(8*mib, 1)
	require.NoError(t, err)
	engine.NotePool(1, 1*mib)
	require.NoError(t, engine.Pause(name("a")))
	engine.Drain()
	stats, err := engine.Stats()
	require.NoError(t, err)
	d := stats.Devices[1]
	require.Equal(t, uint64(5*mib), d.LiveBytes)
	require.Equal(t, uint64(1*mib), d.SlackBytes)
	require.Equal(t, uint64(1*mib), d.PoolBytes)
	require.Equal(t, uint64(4*mib), d.BackupBytes)
	require.Equal(t, uint64(7*mib), d.UntrackedBytes)
	require.Equal(t, d.TotalBytes-d.FreeBytes,
		d.LiveBytes+d.SlackBytes+d.PoolBytes+d.BackupBytes+d.UntrackedBytes)
	require.NoError(t, engine.Resume(name("a")))
	engine.Drain()
	stats, err = engine.Stats()
	require.NoError(t, err)
	require.Zero(t, stats.Devices[1].BackupBytes)
	require.Equal(t, uint64(3*mib), stats.Devices[0].LiveBytes)
	require.NoError(t, driver.MemRelease(other))
	require.NoError(t, engine.Free(a, false))
	require.NoError(t, engine.Free(b, false))
}
