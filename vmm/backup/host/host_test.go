package host

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm/backup"
	"tms/vmm/backup/internal/backuptest"
	"tms/vmm/cuda"
)

// Every copy lies in one registration, and a span of up to maxRegistration in one copy: users copy from retained
// contents themselves, and the driver refuses what reaches from one into the next.
func TestPlacesDoNotStraddleRegistrations(t *testing.T) {
	var spans []backup.Span
	for _, size := range []uint64{2 * mib, 30 * mib, 2 * mib, 40 * mib, 64 << 10, maxRegistration + 2*mib, 2 * mib, 33 * mib, 2 * mib} {
		spans = append(spans, backup.Span{Address: uintptr(len(spans)+1) << 40, Size: size})
	}
	host := New(new(cuda.Driver))
	contents, fresh, err := host.place(backup.Job{Node: -1}, backuptest.Items(spans, nil, -1))
	require.NoError(t, err)
	var end uint64
	for i := range fresh.Registrations {
		r := &fresh.Registrations[i]
		require.Equal(t, end, r.Offset)
		require.Positive(t, r.Size)
		end += r.Size
	}
	require.Equal(t, end, fresh.Size)
	var used uint64
	for i, span := range spans {
		c := contents[i].(*hostContents)
		require.GreaterOrEqual(t, c.offset, used, "spans overlap")
		used = c.offset + span.Size
		copies := c.copies(span, backup.Range{Offset: 0, Size: span.Size})
		if span.Size <= maxRegistration {
			require.Len(t, copies, 1)
		}
		var done uint64
		for _, copy := range copies {
			r := &fresh.Registrations[copy.registration]
			offset := uint64(copy.host - fresh.Base)
			require.GreaterOrEqual(t, offset, r.Offset)
			require.LessOrEqual(t, offset+copy.size, r.Offset+r.Size)
			require.Equal(t, span.Address+uintptr(done), copy.device)
			done += copy.size
		}
		require.Equal(t, span.Size, done)
	}
	require.LessOrEqual(t, used, end)
	// Small spans share a registration.
	require.Equal(t, contents[0].(*hostContents).registration, contents[1].(*hostContents).registration)
}

// Parts of a span are copied between the same places as the whole, and split where registrations end.
func TestPartsOfASpan(t *testing.T) {
	span := backup.Span{Address: 1 << 40, Size: maxRegistration + 64<<20}
	host := New(new(cuda.Driver))
	contents, fresh, err := host.place(backup.Job{Node: -1}, backuptest.Items([]backup.Span{span}, nil, -1))
	require.NoError(t, err)
	c := contents[0].(*hostContents)
	require.Empty(t, c.copies(span))
	copies := c.copies(span, backup.Range{Offset: 2 << 20, Size: 2 << 20}, backup.Range{Offset: maxRegistration - 2<<20, Size: 4 << 20})
	require.Equal(t, []hostCopy{
		{span.Address + 2<<20, fresh.Base + 2<<20, 2 << 20, 0},
		{span.Address + maxRegistration - 2<<20, fresh.Base + maxRegistration - 2<<20, 2 << 20, 0},
		{span.Address + maxRegistration, fresh.Base + maxRegistration, 2 << 20, 1},
	}, copies)
}

const mib = 1 << 20

// What is saved comes back; what is kept is overwritten in place, in parts where only those have changed.
func TestRoundTrip(t *testing.T) {
	sim, driver, jobs := backuptest.Simulate(t, 1, "2G")
	host, job := New(driver), jobs[0]
	var copied atomic.Uint64
	job.Copied = func(bytes uint64) { copied.Add(bytes) }
	spans := backuptest.Spans(t, driver, 0, 2*mib, 34*mib, 2*mib, 66*mib)
	var kept []backup.Contents
	for cycle := range uint64(3) {
		backuptest.Fill(spans, cycle)
		copied.Store(0)
		contents, err := host.Save(job, backuptest.Items(spans, kept, -1))
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
	items[1].Partial, items[1].Changed = true, []backup.Range{{Offset: 32 * mib, Size: 2 * mib}}
	_, err := host.Save(job, items)
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

	// The buffer goes with the last contents in it.
	backuptest.Discard(kept[1:])
	driver.Reclaim.Drain()
	require.EqualValues(t, 104*mib, sim.Stat("registered_bytes"))
	kept[0].Discard()
	kept[0].Await(time.Time{})
	require.Zero(t, sim.Stat("registered_bytes"))
}

// Prepare pins, and copies nothing.
func TestPrepare(t *testing.T) {
	sim, driver, jobs := backuptest.Simulate(t, 1, "2G")
	host := New(driver)
	spans := backuptest.Spans(t, driver, 0, 2*mib, 4*mib)
	kept, err := host.Prepare(jobs[0], spans)
	require.NoError(t, err)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	require.Zero(t, sim.Stat("calls:cuMemcpyDtoHAsync_v2"))
	contents, err := host.Save(jobs[0], backuptest.Items(spans, kept, -1))
	require.NoError(t, err)
	require.Equal(t, kept, contents)
	require.EqualValues(t, 6*mib, sim.Stat("registered_bytes"))
	backuptest.Discard(kept)
	driver.Reclaim.Drain()
	require.Zero(t, sim.Stat("registered_bytes"))
}

// Each driver call fails once, at each place where it is made: a save gives contents, or an error and holds
// nothing; a load gives an error, or the contents.
func TestFailures(t *testing.T) {
	for _, call := range []string{"cuMemHostRegister", "cuMemHostUnregister", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
		"cuStreamCreate", "cuStreamSynchronize", "cuStreamDestroy", "cuCtxPushCurrent", "cuCtxPopCurrent"} {
		sim, driver, jobs := backuptest.Simulate(t, 1, "2G")
		host, job := New(driver), jobs[0]
		spans := backuptest.Spans(t, driver, 0, 2*mib, 40*mib)
		backuptest.Fill(spans, 1)
		for nth, fired := 1, true; fired; nth++ {
			before := sim.FailuresFired()
			sim.Fail(call, nth, int(cuda.Unknown))
			contents, err := host.Save(job, backuptest.Items(spans, nil, -1))
			if err != nil {
				require.Nil(t, contents)
				contents, err = host.Save(job, backuptest.Items(spans, nil, -1))
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
