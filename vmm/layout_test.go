package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// shared makes a resume give neighbours common extents of up to 16 MiB.
func shared(tag string) vmm.Options {
	o := name(tag)
	o.ExtentBytes = 16 * mib
	return o
}

func tagStats(t *testing.T, engine *vmm.Engine, tag string) stats.Tag {
	t.Helper()
	held, err := engine.Records().Stats()
	require.NoError(t, err)
	for _, d := range held.Devices {
		for _, ts := range d.Tags {
			if ts.Tag == tag {
				return ts
			}
		}
	}
	t.Fatalf("no tag %q", tag)
	return stats.Tag{}
}

func TestResumeSharesExtents(t *testing.T) {
	sim, _, engine := simulatedWith(t, 1, "4G")
	// Two tags by turns: neighbours still belong to one tag.
	var mine []uintptr
	for i := range 20 {
		mine = append(mine, malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "mine", Backup: vmm.BackupHost}))
		malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "others"})
		fill(mine[i], 4*mib, uint64(i))
	}
	require.Equal(t, uint64(40), sim.Stat("handles"))
	for range 3 {
		require.NoError(t, pause(engine, shared("mine")))
		require.Equal(t, uint64(20), sim.Stat("handles"))
		require.NoError(t, resume(engine, shared("mine")))
		require.Equal(t, uint64(20+5), sim.Stat("handles"), "4 segments of 4 MiB make an extent")
		requireAll(t, mine, 4*mib)
	}
	// Every second one goes: the memory stays with its neighbours, and serves the next of the size.
	for i := 0; i < 20; i += 2 {
		require.NoError(t, engine.Free(mine[i], false))
		require.ErrorIs(t, engine.Free(mine[i], false), vmm.ErrInvalidAddress)
	}
	require.Equal(t, uint64(40*mib), tagStats(t, engine, "mine").SlackBytes)
	creates := sim.Stat("calls:cuMemCreate")
	again := malloc(t, engine, vmm.Request{Size: 4*mib - 5, Tag: "mine", Backup: vmm.BackupHost})
	require.Equal(t, creates, sim.Stat("calls:cuMemCreate"))
	fill(again, 4*mib-5, 100)
	require.Equal(t, uint64(36*mib+5), tagStats(t, engine, "mine").SlackBytes)
	for i := 1; i < 20; i += 2 {
		requireFilled(t, mine[i], 4*mib, uint64(i))
	}
	// A pause leaves the slack behind.
	require.NoError(t, pause(engine, shared("mine")))
	require.Equal(t, uint64(40*mib), sim.Stat("handle_bytes"))
	require.NoError(t, resume(engine, shared("mine")))
	require.Equal(t, uint64(40*mib+44*mib), sim.Stat("handle_bytes"))
	requireFilled(t, again, 4*mib-5, 100)
	for i := 1; i < 20; i += 2 {
		requireFilled(t, mine[i], 4*mib, uint64(i))
		require.NoError(t, engine.Free(mine[i], false))
	}
	require.NoError(t, engine.Free(again, false))
	require.Equal(t, uint64(40*mib), sim.Stat("handle_bytes"))
}

// Slack serves only its tag, with whatever size fits into it, and is no free memory: a request that does not fit is
// refused with a text that names the slack, and nothing live is touched for it.
func TestSlack(t *testing.T) {
	sim, _, engine := simulatedWith(t, 1, "256M")
	vmm.HostOf(engine).SetCompactor(unable{}) // it never can when it comes to that
	all := filled(t, engine, 32, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
	cycle(t, engine, shared("t")) // in extents of 16 MiB
	malloc(t, engine, vmm.Request{Size: 116 * mib, Tag: "filler"})
	for i, a := range all {
		if i%4 != 1 {
			require.NoError(t, engine.Free(a, false))
		}
	}
	kept := func() {
		t.Helper()
		for i := 1; i < 32; i += 4 {
			requireFilled(t, all[i], 4*mib, uint64(i))
		}
	}
	require.Equal(t, uint64(96*mib), tagStats(t, engine, "t").SlackBytes)
	made := sim.Stat("calls:cuMemCreate")
	// Pieces of 4 and 8 MiB, side by side where two were freed; 6 MiB are split from 8.
	sizes := []uint64{8 * mib, 6 * mib, 2 * mib, 4 * mib, 100}
	var served []uintptr
	for i, size := range sizes {
		served = append(served, malloc(t, engine, vmm.Request{Size: size, Tag: "t"}))
		fill(served[i], int(size), uint64(1000+i))
	}
	require.Equal(t, made, sim.Stat("calls:cuMemCreate"))
	require.Equal(t, uint64(96*mib-20*mib-100), tagStats(t, engine, "t").SlackBytes)
	kept()

	unmaps := sim.Stat("calls:cuMemUnmap")
	_, err := engine.Malloc(vmm.Request{Size: 60 * mib, Tag: "big"})
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.ErrorContains(t, err, "74.00 MiB of device 0 are slack")
	require.ErrorContains(t, err, `("t")`)
	require.Equal(t, unmaps, sim.Stat("calls:cuMemUnmap"))

	for i, a := range served {
		requireFilled(t, a, int(sizes[i]), uint64(1000+i))
		require.NoError(t, engine.Free(a, false))
	}
	require.NoError(t, pause(engine, shared("t"))) // which leaves it behind
	malloc(t, engine, vmm.Request{Size: 60 * mib, Tag: "big"})
	require.NoError(t, resume(engine, shared("t")))
	require.Zero(t, tagStats(t, engine, "t").SlackBytes)
	kept()
}

func TestSmallAllocationsShareGranules(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	const count = 10000
	addresses := filled(t, engine, count, vmm.Request{Size: 4096, Tag: "small", Backup: vmm.BackupHost})
	require.LessOrEqual(t, sim.Stat("handle_bytes"), uint64(44*mib))
	seen := map[uintptr]bool{}
	for _, a := range addresses {
		require.Zero(t, a%512)
		require.False(t, seen[a])
		seen[a] = true
	}
	ts := tagStats(t, engine, "small")
	require.Equal(t, count, ts.Segments)
	require.Equal(t, uint64(count*4096), ts.LiveBytes)
	require.NoError(t, pause(engine, shared("small")))
	require.Zero(t, sim.Stat("handle_bytes"))
	p, err := engine.BackupPointer(addresses[77]+8, 4088, false)
	require.NoError(t, err)
	require.Equal(t, bytesAt(p, 8), bytesAt(p, 8))
	_, err = engine.BackupPointer(addresses[77], 4097, false)
	require.ErrorIs(t, err, vmm.ErrInvalidAddress)
	require.NoError(t, engine.Free(addresses[0], false), "while paused")
	require.ErrorIs(t, engine.Free(addresses[1]+512, false), vmm.ErrInvalidAddress)
	// Others that are made while the tag is paused are active.
	more := mallocs(t, engine, 3, vmm.Request{Size: 100, Tag: "small", Backup: vmm.BackupHost})
	fill(more[0], 100, 1)
	require.NoError(t, resume(engine, shared("small")))
	for i, a := range addresses[1:] {
		requireFilled(t, a, 4096, uint64(i+1))
	}
	_, ok := engine.Records().MemoryAt(addresses[0])
	require.False(t, ok)
	_, ok = engine.Records().MemoryAt(addresses[1] + 4095)
	require.True(t, ok)
	for _, a := range append(addresses[1:], more...) {
		require.NoError(t, engine.Free(a, false))
		require.ErrorIs(t, engine.Free(a, false), vmm.ErrInvalidAddress)
	}
	require.Zero(t, sim.Stat("handle_bytes"), "every granule has gone back")
}

// Policies and tags do not share granules, because memory is paused, and contents are kept, by the granule.
func TestSmallAllocationsOfOneKindOnly(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	for _, r := range []vmm.Request{
		{Size: 512, Tag: "a"}, {Size: 512, Tag: "b"}, {Size: 512, Tag: "a", Backup: vmm.BackupHost},
		{Size: 512, Tag: "a", Backup: vmm.BackupHost, Incremental: true},
	} {
		mallocs(t, engine, 2, r)
	}
	require.Equal(t, uint64(4), sim.Stat("handles"))
}

// Unmapped memory is gone, so a release that the driver then refuses is no error of the free, and is made later.
func TestFreeReleasesLater(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
	sim.Fail("cuMemRelease", 1, 999)
	sim.Fail("cuMemRelease", 2, 999)
	require.NoError(t, engine.Free(a, false))
	require.ErrorIs(t, engine.Free(a, false), vmm.ErrInvalidAddress)
	require.Equal(t, uint64(1), sim.Stat("handles"))
	require.NoError(t, pause(engine, name("t")))
	require.Zero(t, sim.Stat("handles"))
}

func TestPoison(t *testing.T) {
	_, _, engine := simulated(t, 1)
	lost := malloc(t, engine, vmm.Request{Size: 3 * mib, Tag: "t"})
	kept := malloc(t, engine, vmm.Request{Size: 3 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(lost, 3*mib, 1)
	fill(kept, 3*mib, 2)
	o := shared("t")
	o.Poison = true
	cycle(t, engine, o)
	requireFilled(t, kept, 3*mib, 2)
	for _, at := range []uintptr{0, mib, 3*mib - 4} {
		require.Equal(t, []byte{0xff, 0x7f, 0xff, 0x7f}, bytesAt(lost+at, 4))
	}
}

func TestStatsNameWhatHoldsMemory(t *testing.T) {
	_, driver, engine := simulated(t, 2)
	malloc(t, engine, vmm.Request{Size: 3 * mib, Tag: "a", Backup: vmm.BackupPeer, Target: 1})
	malloc(t, engine, vmm.Request{Size: 5 * mib, Device: 1, Tag: "b"})
	other, err := driver.MemCreate(8*mib, 1)
	require.NoError(t, err)
	require.NoError(t, pause(engine, name("a")))
	engine.Drain()
	stats, err := engine.Records().Stats()
	require.NoError(t, err)
	d := stats.Devices[1]
	require.Equal(t, uint64(5*mib), d.LiveBytes)
	require.Equal(t, uint64(1*mib), d.SlackBytes)
	require.Equal(t, uint64(4*mib), d.BackupBytes)
	require.Equal(t, uint64(8*mib), d.UntrackedBytes)
	require.Equal(t, d.TotalBytes-d.FreeBytes, d.LiveBytes+d.SlackBytes+d.BackupBytes+d.UntrackedBytes)
	require.NoError(t, resume(engine, name("a")))
	engine.Drain()
	stats, err = engine.Records().Stats()
	require.NoError(t, err)
	require.Zero(t, stats.Devices[1].BackupBytes)
	require.Equal(t, uint64(3*mib), stats.Devices[0].LiveBytes)
	require.NoError(t, driver.MemRelease(other))
}

// Once for a pause, and once for a resume.
func TestUnknownTagIsToldOnce(t *testing.T) {
	_, _, engine := simulated(t, 1)
	var told []string
	vmm.HostOf(engine).SetWarn(func(line string) { told = append(told, line) })
	a := malloc(t, engine, vmm.Request{Size: mib, Tag: "weights"})
	b := malloc(t, engine, vmm.Request{Size: mib, Tag: "cache"})
	for range 2 {
		both := vmm.Options{Tags: []string{"cache", "wieghts"}}
		require.NoError(t, pause(engine, both))
		require.True(t, engine.PausedAt(b))
		require.NoError(t, resume(engine, both))
		require.NoError(t, pause(engine, vmm.Options{Tags: []string{}})) // which is not all of them
		require.False(t, engine.PausedAt(a))
		cycle(t, engine, name("weights"))
		cycle(t, engine, vmm.Options{})
	}
	require.Equal(t, []string{`pause: nothing was ever allocated with tag "wieghts"; tags so far: "cache", "weights"`,
		`resume: nothing was ever allocated with tag "wieghts"; tags so far: "cache", "weights"`}, told)
	frees(t, engine, a, b)
	require.NoError(t, pause(engine, name("weights"))) // it was used
	require.Len(t, told, 2)
}
