package backup_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm/backup"
	"tms/vmm/backup/host"
	"tms/vmm/backup/internal/backuptest"
	"tms/vmm/cuda"
)

// Saved contents come back; kept ones are overwritten in place, and only in parts if only those have changed.
func TestHostRoundTrip(t *testing.T) {
	sim, driver, jobs := backuptest.Simulate(t, 1, "2G")
	store, job := host.New(driver), jobs[0]
	var copied atomic.Uint64
	job.Copied = func(bytes uint64) { copied.Add(bytes) }
	spans := backuptest.Spans(t, driver, 0, 2*mib, 34*mib, 2*mib, 66*mib)
	var kept []backup.Contents
	for cycle := range uint64(3) {
		backuptest.Fill(spans, cycle)
		copied.Store(0)
		contents, err := store.Save(job, backuptest.Items(spans, kept, -1))
		require.NoError(t, err)
		require.EqualValues(t, 104*mib, copied.Load())
		if kept != nil {
			require.Equal(t, kept, contents)
		}
		kept = contents
		require.EqualValues(t, 104*mib, sim.Stat("registered_bytes"))
		for i, c := range kept {
			require.Equal(t, spans[i].Size, c.Bytes())
			saved := backup.Span{Address: c.Host(), Size: c.Bytes()}
			require.Equal(t, backuptest.Bytes(spans[i]), backuptest.Bytes(saved))
		}
		backuptest.Wipe(spans)
		require.NoError(t, backuptest.Load(job, spans, kept))
		backuptest.RequireFilled(t, spans, cycle)
	}
	// Of the second span only its last two MiB are said to have changed.
	backuptest.Fill(spans, 3)
	items := backuptest.Items(spans, kept, -1)
	items[1].Parts = []backup.Range{{Offset: 32 * mib, Size: 2 * mib}}
	_, err := store.Save(job, items)
	require.NoError(t, err)
	fresh := append([]byte(nil), backuptest.Bytes(spans[1])[32*mib:]...)
	backuptest.Wipe(spans)
	require.NoError(t, backuptest.Load(job, spans, kept))
	require.Equal(t, fresh, backuptest.Bytes(spans[1])[32*mib:])
	backuptest.RequireFilled(t, spans[:1], 3)
	backuptest.Fill(spans, 2)
	old := append([]byte(nil), backuptest.Bytes(spans[1])[:32*mib]...)
	require.NoError(t, backuptest.Load(job, spans, kept))
	require.Equal(t, old, backuptest.Bytes(spans[1])[:32*mib], "as it was saved before")

	// Each registration goes with the last contents in it.
	backuptest.Discard(kept[1:3])
	kept[1].Await(time.Time{})
	kept[2].Await(time.Time{})
	driver.Reclaim.Drain()
	require.EqualValues(t, (104-36)*mib, sim.Stat("registered_bytes"))
	kept[3].Discard()
	kept[3].Await(time.Time{})
	require.EqualValues(t, 2*mib, sim.Stat("registered_bytes"))
	require.False(t, host.Scattered(kept[0]), "it has all of one")
	kept[0].Discard()
	kept[0].Await(time.Time{})
	require.Zero(t, sim.Stat("registered_bytes"))
}

// A save of no part pins, and copies nothing.
func TestHostPrepare(t *testing.T) {
	sim, driver, jobs := backuptest.Simulate(t, 1, "2G")
	store := host.New(driver)
	spans := backuptest.Spans(t, driver, 0, 2*mib, 4*mib)
	items := backuptest.Items(spans, nil, -1)
	for i := range items {
		items[i].Parts = nil
	}
	kept, err := store.Save(jobs[0], items)
	require.NoError(t, err)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	require.Zero(t, sim.Stat("calls:cuMemcpyDtoHAsync_v2"))
	contents, err := store.Save(jobs[0], backuptest.Items(spans, kept, -1))
	require.NoError(t, err)
	require.Equal(t, kept, contents)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	backuptest.Discard(kept)
	driver.Reclaim.Drain()
	require.Zero(t, sim.Stat("registered_bytes"))
}

// Each driver call fails once, at each place where it is made: a save returns contents, or an error and holds nothing;
// a load returns an error, or restores the contents.
func TestHostFailures(t *testing.T) {
	for _, call := range []string{"cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
		"cuStreamCreate", "cuStreamSynchronize", "cuStreamDestroy", "cuCtxPushCurrent", "cuCtxPopCurrent"} {
		sim, driver, jobs := backuptest.Simulate(t, 1, "2G")
		store, job := host.New(driver), jobs[0]
		spans := backuptest.Spans(t, driver, 0, 2*mib, 40*mib)
		backuptest.Fill(spans, 1)
		for nth, fired := 1, true; fired; nth++ {
			before := sim.FailuresFired()
			sim.Fail(call, nth, int(cuda.Unknown))
			contents, err := store.Save(job, backuptest.Items(spans, nil, -1))
			if err != nil {
				require.Nil(t, contents)
				contents, err = store.Save(job, backuptest.Items(spans, nil, -1))
			}
			require.NoError(t, err, "once more after %s %d", call, nth)
			backuptest.Wipe(spans)
			if backuptest.Load(job, spans, contents) != nil {
				require.NoError(t, backuptest.Load(job, spans, contents))
			}
			backuptest.RequireFilled(t, spans, 1)
			backuptest.Discard(contents)
			driver.Reclaim.Drain() // the driver may refuse
			driver.Reclaim.Drain()
			require.Zero(t, sim.Stat("registered_bytes")+sim.Stat("streams"), "after %s %d", call, nth)
			fired = sim.FailuresFired() > before
			sim.ClearFailures()
		}
		require.NotZero(t, sim.FailuresFired(), "%s is never called", call)
	}
}
