package vmm_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/space"
)

const gib = 1 << 30

// width is how many bytes from the first address to the last, all of one reservation.
func width(addresses []uintptr) uint64 {
	return uint64(slices.Max(addresses) - slices.Min(addresses))
}

// Tags of small allocations lie granule by granule; larger ones get room for neighbours, ever more of it.
func TestRangesGrowWithUse(t *testing.T) {
	sim, _, engine := simulatedWith(t, 1, "64G")
	var small []uintptr
	for i := range 2000 {
		small = append(small, malloc(t, engine, vmm.Request{Size: 512, Tag: fmt.Sprint("small", i)}))
	}
	require.Equal(t, uint64(1999*2*mib), width(small))
	// Five tags by turns: addresses in proportion to what they use, and still side by side.
	tags := map[string][]uintptr{}
	var all []uintptr
	for i := range 5 * 400 {
		tag := string(rune('a' + i%5))
		tags[tag] = append(tags[tag], malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: tag}))
		all = append(all, tags[tag][i/5])
	}
	require.Less(t, width(append(small, all...)), uint64(2*(2000+5*400)*2*mib+gib))
	before := sim.Stat("handles")
	o := vmm.Options{ExtentBytes: 80 * mib}
	for tag := range tags {
		o.Tags = []string{tag}
		cycle(t, engine, o)
	}
	// Ranges of 80, 80, 160, 320 and 640 MiB for 800: 10 extents.
	require.Equal(t, before-5*400+5*10, sim.Stat("handles"))
	// All of it can be allocated again.
	frees(t, engine, append(small, all...)...)
	malloc(t, engine, vmm.Request{Size: 60 * gib, Tag: "whole"})
	require.Equal(t, uint64(1), sim.Stat("reservations"), "it fits where the others were")
}

// Slack on the two sides of a border between a tag's ranges stays apart.
func TestSlackAcrossRanges(t *testing.T) {
	_, _, engine := simulatedWith(t, 1, "64G")
	engine.CheckInvariants(true)
	o := vmm.Options{ExtentBytes: 64 * gib}
	all := mallocs(t, engine, 6, vmm.Request{Size: 8 * gib, Tag: "t"})
	for i := range all[1:] {
		require.Equal(t, all[i]+8*gib, all[i+1], "ranges side by side")
	}
	cycle(t, engine, o)
	frees(t, engine, all[1:5]...)
	mallocs(t, engine, 2, vmm.Request{Size: 12 * gib, Tag: "t"})
}

// Memory that becomes free in a room, even as slack, is for that room alone.
func TestSlackOfARoom(t *testing.T) {
	_, _, engine := simulatedWith(t, 1, "1G")
	engine.CheckInvariants(true)
	plain := vmm.Request{Size: 4 * mib, Tag: "t"}
	roomy := plain
	roomy.Room = &space.Room{Bytes: 64 * mib}
	inside, beside := mallocs(t, engine, 4, roomy), mallocs(t, engine, 4, plain)
	for i := range inside[1:] {
		require.Equal(t, inside[i]+4*mib, inside[i+1])
	}
	o := vmm.Options{ExtentBytes: 64 * mib}
	cycle(t, engine, o)
	frees(t, engine, inside[1], inside[2], beside[2])
	require.Equal(t, beside[2:3], mallocs(t, engine, 1, plain))
	require.NotContains(t, inside, malloc(t, engine, plain))
	require.Equal(t, inside[1:3], mallocs(t, engine, 2, roomy))
}

// Paused memory keeps its addresses: they outnumber memory by far, in few reservations.
func TestArenasGrowWithUse(t *testing.T) {
	sim, _, engine := simulatedWith(t, 1, "70G")
	var all []uintptr
	for i := range 600 { // 3000 GiB
		all = append(all, malloc(t, engine, vmm.Request{Size: 5 * gib, Tag: fmt.Sprint(i % 3)}))
		if i == 0 {
			require.Equal(t, uint64(1), sim.Stat("reservations"))
			require.LessOrEqual(t, sim.Stat("reserved_bytes"), uint64(128*gib), "as large as the device's memory")
		}
		require.NoError(t, pause(engine, vmm.Options{}))
	}
	slices.Sort(all)
	for i := range all[1:] {
		require.GreaterOrEqual(t, all[i+1]-all[i], uintptr(5*gib))
	}
	require.LessOrEqual(t, sim.Stat("reservations"), uint64(7))
	reservations := sim.Stat("reservations")
	for range 2 {
		frees(t, engine, all...)
		all = all[:0]
		for i := range 400 {
			all = append(all, malloc(t, engine, vmm.Request{Size: 5 * gib, Tag: fmt.Sprint("again", i%3)}))
			require.NoError(t, pause(engine, vmm.Options{}))
		}
	}
	frees(t, engine, all...)
	require.Equal(t, reservations, sim.Stat("reservations"), "addresses are used again")
}

// Where no more can be reserved, existing addresses are used to the last, and an allocation that finds none is refused
// until something is freed.
func TestNoMoreReservations(t *testing.T) {
	sim, _, engine := simulatedWith(t, 1, "2G")
	engine.CheckInvariants(true)
	malloc(t, engine, vmm.Request{Size: mib, Tag: "first"})
	for n := range 10000 {
		sim.Fail("cuMemAddressReserve", n+1, 2)
	}
	var all []uintptr
	var refused error
	for i := 0; refused == nil; i++ {
		tag := fmt.Sprint(i)
		address, err := engine.Malloc(vmm.Request{Size: gib, Tag: tag})
		if refused = err; err == nil {
			all = append(all, address)
			require.NoError(t, pause(engine, name(tag)))
		}
	}
	require.ErrorIs(t, refused, cuda.OutOfMemory)
	require.ErrorContains(t, refused, "reserving 1.00 GiB of addresses")
	require.Len(t, all, 63, "of 64 GiB the first tag has a granule")
	require.NoError(t, engine.Free(all[7], false))
	all[7] = malloc(t, engine, vmm.Request{Size: gib, Tag: "other"})
	sim.ClearFailures()
	require.NoError(t, pause(engine, name("other")))
	malloc(t, engine, vmm.Request{Size: gib, Tag: "more"})
	frees(t, engine, all...)
}

// tagNames lists the tags that statistics show.
func tagNames(t *testing.T, engine *vmm.Engine) (names []string) {
	t.Helper()
	stats, err := engine.Records().Stats()
	require.NoError(t, err)
	for _, d := range stats.Devices {
		for _, ts := range d.Tags {
			names = append(names, ts.Tag)
		}
	}
	return names
}

// A tag is known as long as it has anything.
func TestTagsComeAndGo(t *testing.T) {
	_, driver, engine := simulated(t, 1)
	engine.CheckInvariants(true)
	// Refused: nothing is left of it.
	_, err := engine.Malloc(vmm.Request{Size: 2 * mib, Tag: "refused", Margin: 2 * gib})
	require.ErrorIs(t, err, vmm.ErrMargin)
	require.Empty(t, tagNames(t, engine))
	a := mallocs(t, engine, 3, vmm.Request{Size: 2 * mib, Tag: "a"})
	b := mallocs(t, engine, 2, vmm.Request{Size: 100, Tag: "b"})
	require.Equal(t, []string{"a", "b"}, tagNames(t, engine))
	cycle(t, engine, shared("a"))
	frees(t, engine, a[0], a[1])
	require.Equal(t, uint64(4*mib), tagStats(t, engine, "a").SlackBytes)
	require.NoError(t, engine.Free(b[0], false))
	require.Equal(t, []string{"a", "b"}, tagNames(t, engine))
	frees(t, engine, b[1], a[2])
	require.Empty(t, tagNames(t, engine))
	require.NoError(t, pause(engine, name("a")))

	// Memory that the program maps itself belongs to its tag while it is mapped, even when everything else of that tag
	// is gone.
	m := newMapper(t, driver, engine, vmm.Request{Tag: "a", Backup: vmm.BackupHost})
	handle, err := engine.UserMapped().Create(m.request, cuda.PinnedOn(0))
	require.NoError(t, err)
	require.Empty(t, tagNames(t, engine))
	frees(t, engine, malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "a"}))
	require.NoError(t, engine.UserMapped().Map(m.at(0), chunk, 0, handle, 0))
	m.open(0, 1)
	fill(m.at(0), chunk, 1)
	require.NoError(t, pause(engine, name("a")))
	require.Equal(t, uint64(chunk), tagStats(t, engine, "a").PausedBytes)
	require.NoError(t, resume(engine, name("a")))
	requireFilled(t, m.at(0), chunk, 1)
	m.unmap(0, 1, handle)
	require.Empty(t, tagNames(t, engine))
	m.end()
}

// Tags that come and go leave nothing behind, however many there are: a program may use a new one for each step.
func TestManyTagsComeAndGo(t *testing.T) {
	hermetic.Thorough(t)
	const tags = 100000
	_, _, e := simulated(t, 1)
	heap := func() uint64 {
		e.Drain()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	half := func(from int) {
		for i := from; i < from+tags/2; i++ {
			r := vmm.Request{Size: 512, Tag: fmt.Sprint("step ", i), Backup: vmm.BackupHost}
			a, err := e.Malloc(r)
			require.NoError(t, err)
			switch i % 64 {
			case 0:
				cycle(t, e, name(r.Tag))
				require.Zero(t, e.Records().PausedBy(r.Tag))
			case 1:
				require.NoError(t, e.Prepare([]string{r.Tag})())
			case 2:
				require.NoError(t, resume(e, name("misspelt "+r.Tag)))
			}
			if i%64 == 3 {
				require.NoError(t, e.FreeAfter(a, 0))
			} else {
				require.NoError(t, e.FreeIdle(a, false))
			}
		}
	}
	half(0)
	before := heap()
	half(tags / 2)
	require.Less(t, int64(heap()-before), int64(tags/2*16), "bytes")
	require.Empty(t, tagNames(t, e))
}
