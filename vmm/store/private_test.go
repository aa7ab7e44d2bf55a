package store

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm/cuda"
)

// Saved contents come back; kept ones are overwritten in place, and only in parts if only those have changed.
func TestHostRoundTrip(t *testing.T) {
	sim, driver, jobs := simulate(t, 1, "2G")
	store, job := NewPrivate(driver), jobs[0]
	var copied atomic.Uint64
	job.Copied = func(bytes uint64) { copied.Add(bytes) }
	spans := spans(t, driver, 0, 2*mib, 34*mib, 2*mib, 66*mib)
	var kept []Contents
	for cycle := range uint64(3) {
		fill(spans, cycle)
		copied.Store(0)
		contents, err := store.Save(job, itemsFor(spans, kept, -1))
		require.NoError(t, err)
		require.EqualValues(t, 104*mib, copied.Load())
		if kept != nil {
			require.Equal(t, kept, contents)
		}
		kept = contents
		require.EqualValues(t, 104*mib, sim.Stat("registered_bytes"))
		for i, c := range kept {
			require.Equal(t, spans[i].Size, c.Bytes())
			saved := Span{Address: c.Host(), Size: c.Bytes()}
			require.Equal(t, memoryOf(spans[i]), memoryOf(saved))
		}
		wipe(spans)
		require.NoError(t, loadAll(job, spans, kept))
		requireFilled(t, spans, cycle)
	}
	// Of the second span only its last two MiB are said to have changed.
	fill(spans, 3)
	items := itemsFor(spans, kept, -1)
	items[1].Parts = []Range{{Offset: 32 * mib, Size: 2 * mib}}
	_, err := store.Save(job, items)
	require.NoError(t, err)
	fresh := append([]byte(nil), memoryOf(spans[1])[32*mib:]...)
	wipe(spans)
	require.NoError(t, loadAll(job, spans, kept))
	require.Equal(t, fresh, memoryOf(spans[1])[32*mib:])
	requireFilled(t, spans[:1], 3)
	fill(spans, 2)
	old := append([]byte(nil), memoryOf(spans[1])[:32*mib]...)
	require.NoError(t, loadAll(job, spans, kept))
	require.Equal(t, old, memoryOf(spans[1])[:32*mib], "as it was saved before")

	// Each registration goes with the last contents in it.
	discardAll(kept[1:3])
	kept[1].Await(time.Time{})
	kept[2].Await(time.Time{})
	driver.Reclaim.Drain()
	require.EqualValues(t, (104-36)*mib, sim.Stat("registered_bytes"))
	kept[3].Discard()
	kept[3].Await(time.Time{})
	require.EqualValues(t, 2*mib, sim.Stat("registered_bytes"))
	require.False(t, Scattered(kept[0]), "it has all of one")
	kept[0].Discard()
	kept[0].Await(time.Time{})
	require.Zero(t, sim.Stat("registered_bytes"))
}

// A save of no part pins, and copies nothing.
func TestHostPrepare(t *testing.T) {
	sim, driver, jobs := simulate(t, 1, "2G")
	store := NewPrivate(driver)
	spans := spans(t, driver, 0, 2*mib, 4*mib)
	items := itemsFor(spans, nil, -1)
	for i := range items {
		items[i].Parts = nil
	}
	kept, err := store.Save(jobs[0], items)
	require.NoError(t, err)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	require.Zero(t, sim.Stat("calls:cuMemcpyDtoHAsync_v2"))
	contents, err := store.Save(jobs[0], itemsFor(spans, kept, -1))
	require.NoError(t, err)
	require.Equal(t, kept, contents)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	discardAll(kept)
	driver.Reclaim.Drain()
	require.Zero(t, sim.Stat("registered_bytes"))
}

// Each driver call fails once, at each place where it is made: a save returns contents, or an error and holds nothing;
// a load returns an error, or restores the contents.
func TestHostFailures(t *testing.T) {
	for _, call := range []string{"cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
		"cuStreamCreate", "cuStreamSynchronize", "cuStreamDestroy", "cuCtxPushCurrent", "cuCtxPopCurrent"} {
		sim, driver, jobs := simulate(t, 1, "2G")
		store, job := NewPrivate(driver), jobs[0]
		spans := spans(t, driver, 0, 2*mib, 40*mib)
		fill(spans, 1)
		for nth, fired := 1, true; fired; nth++ {
			before := sim.FailuresFired()
			sim.Fail(call, nth, int(cuda.Unknown))
			contents, err := store.Save(job, itemsFor(spans, nil, -1))
			if err != nil {
				require.Nil(t, contents)
				contents, err = store.Save(job, itemsFor(spans, nil, -1))
			}
			require.NoError(t, err, "once more after %s %d", call, nth)
			wipe(spans)
			if loadAll(job, spans, contents) != nil {
				require.NoError(t, loadAll(job, spans, contents))
			}
			requireFilled(t, spans, 1)
			discardAll(contents)
			driver.Reclaim.Drain() // the driver may refuse
			driver.Reclaim.Drain()
			require.Zero(t, sim.Stat("registered_bytes")+sim.Stat("streams"), "after %s %d", call, nth)
			fired = sim.FailuresFired() > before
			sim.ClearFailures()
		}
		require.NotZero(t, sim.FailuresFired(), "%s is never called", call)
	}
}
