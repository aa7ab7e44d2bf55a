package caching

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// recordedBlock returns a freed block that streams 1 and 2 have used.
func (b bench) recordedBlock() uintptr {
	b.t.Helper()
	address := b.malloc(5*mib, 0)
	for _, stream := range []pool.Stream{1, 2, 1, 0} { // its own and a repetition do not count
		require.NoError(b.t, b.RecordStream(address, stream))
	}
	b.free(address)
	return address
}

func TestRecordStream(t *testing.T) {
	b := newBench(t, gib, "")
	address := b.recordedBlock()
	require.Len(t, b.device.events, 2)
	require.Equal(t, pool.PendingFree, b.Snapshot()[0].Blocks[0].State)
	require.Equal(t, int64(1), b.detail().Active.All.Current)
	require.Zero(t, b.Stats().Live)
	require.ErrorIs(t, b.RecordStream(address, 1), pool.ErrInvalidAddress, "freed already")
	require.NotEqual(t, address, b.malloc(5*mib, 0))
	b.device.complete(1)
	require.NotEqual(t, address, b.malloc(5*mib, 0), "one is not done")
	b.device.complete(2)
	require.Equal(t, address, b.malloc(5*mib, 0))
	require.Empty(t, b.device.events)
	require.Zero(t, b.uses.Held())
	b.free(address)
	require.Equal(t, address, b.malloc(5*mib, 0), "the streams are forgotten")
}

func TestStreamsDoNotWaitForEachOther(t *testing.T) {
	b := newBench(t, gib, "")
	one, two := b.malloc(5*mib, 0), b.malloc(5*mib, 0)
	require.NoError(t, b.RecordStream(one, 1))
	require.NoError(t, b.RecordStream(two, 2))
	b.free(one, two)
	b.device.complete(2)
	require.Equal(t, two, b.malloc(5*mib, 0))
}

func TestEventsAreWaitedFor(t *testing.T) {
	b := newBench(t, 40*mib, "")
	b.recordedBlock()
	b.trim(20 * mib)
	b.recordedBlock()
	b.malloc(40*mib, 0) // a shortage waits, too
	require.NoError(t, b.Destroy())
	b.recordedBlock()
	require.NoError(t, b.Destroy())
	require.Empty(t, b.device.events)
	require.Zero(t, b.device.held)
}

func TestEventsFail(t *testing.T) {
	broken := errors.New("no events today")
	b := newBench(t, gib, "")
	address := b.malloc(5*mib, 0)
	require.NoError(t, b.RecordStream(address, 1))
	require.NoError(t, b.RecordStream(address, 2))
	before := b.Stats()
	b.device.refuseRecord = broken
	require.ErrorIs(t, b.Free(address), broken)
	require.Equal(t, before, b.Stats(), "still live")
	require.Empty(t, b.device.events)
	b.device.refuseRecord = nil
	b.free(address)

	b.device.refuseQuery = broken
	_, err := b.Malloc(1, 0)
	require.ErrorIs(t, err, broken)
	_, err = b.Trim()
	require.ErrorIs(t, err, broken)
	check(t, b.Pool)
	require.Len(t, b.device.events, 2)
	require.ErrorIs(t, b.Destroy(), broken)
	require.Zero(t, b.device.held, "Destroy goes on")
	require.Empty(t, b.device.events)
}

func TestEventsWaitForTheEndOfACapture(t *testing.T) {
	b := newBench(t, gib, "")
	before := b.recordedBlock()
	b.device.calls = nil
	require.NoError(t, b.BeginAllocateToPool(first, only(9)))
	during := b.recordedBlock()
	b.device.complete(1)
	b.device.complete(2)
	require.NotContains(t, []uintptr{before, during}, b.malloc(5*mib, 0))
	require.Empty(t, b.device.calls, "CUDA forbids it")
	require.NoError(t, b.EndAllocateToPool(first))
	require.Equal(t, before, b.malloc(5*mib, 0))
	require.NotEqual(t, during, b.malloc(5*mib, 0), "its events were recorded only now")
	b.device.complete(1)
	b.device.complete(2)
	require.Equal(t, during, b.malloc(5*mib, 0))
	require.Zero(t, b.uses.Held())
}

func TestDeferredRecordFails(t *testing.T) {
	b := newBench(t, gib, "")
	require.NoError(t, b.BeginAllocateToPool(first, only(9)))
	address := b.recordedBlock()
	require.NoError(t, b.EndAllocateToPool(first))
	b.device.refuseRecord = errors.New("no events today")
	b.device.calls = nil
	_, err := b.Malloc(1, 0)
	require.ErrorIs(t, err, b.device.refuseRecord)
	check(t, b.Pool)
	b.device.refuseRecord = nil
	b.malloc(1, 0)
	b.device.complete(1)
	b.device.complete(2)
	require.Equal(t, address, b.malloc(5*mib, 0))
}

func TestRecordStreamWithoutEvents(t *testing.T) {
	d := newDevice(40 * mib)
	b := bench{newPool(t, bare{d}, ""), t, d}
	require.ErrorIs(t, b.RecordStream(b.malloc(5*mib, 0), 1), pool.ErrOption)
}
