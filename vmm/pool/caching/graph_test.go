package caching

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

var (
	_ pool.Pool           = (*Pool)(nil)
	_ pool.GraphPools     = (*Pool)(nil)
	_ pool.StreamRecorder = (*Pool)(nil)
)

var first, second = pool.GraphPoolID{1, 0}, pool.GraphPoolID{0, 1}

func only(stream pool.Stream) func(pool.Stream) bool {
	return func(s pool.Stream) bool { return s == stream }
}

func TestGraphPool(t *testing.T) {
	b := newBench(t, gib, "")
	cached := b.malloc(5*mib, 7)
	b.free(cached)

	require.NoError(t, b.BeginAllocateToPool(first, only(7)))
	inside := b.malloc(5*mib, 7)
	require.NotEqual(t, cached, inside, "a graph does not take what others have cached")
	b.free(inside)
	require.Equal(t, inside, b.malloc(5*mib, 7), "within a capture memory is used again")
	outside := b.malloc(5*mib, 8)
	b.free(outside)
	require.NoError(t, b.EndAllocateToPool(first))

	require.Equal(t, cached, b.malloc(5*mib, 7), "after it the stream is as before")
	b.free(inside, cached)
	b.trim(40 * mib)
	require.Equal(t, uint64(20*mib), b.Stats().Reserved, "the graph's stay")

	require.NoError(t, b.BeginAllocateToPool(first, only(7)))
	require.Equal(t, inside, b.malloc(5*mib, 7), "a second graph shares the pool")
	require.NoError(t, b.EndAllocateToPool(first))
	require.NoError(t, b.ReleasePool(first))
	b.trim(0, "one graph is left, and a block")
	require.NoError(t, b.ReleasePool(first))
	b.trim(0, "the block is left")
	require.ErrorIs(t, b.BeginAllocateToPool(first, nil), pool.ErrGraphPool)
	b.free(inside)
	b.malloc(5*mib, 7)
	require.Equal(t, uint64(40*mib), b.Stats().Reserved, "no allocation comes from a released pool")
	b.trim(20 * mib)
	require.Empty(t, b.Private())
	require.NoError(t, b.BeginAllocateToPool(first, nil), "the id is free again")
}

func TestReleasedGraphPoolGoesInAShortage(t *testing.T) {
	b := newBench(t, 100*mib, "")
	require.NoError(t, b.BeginAllocateToPool(first, nil))
	b.free(b.malloc(60*mib, 0))
	require.NoError(t, b.EndAllocateToPool(first))
	_, err := b.Malloc(80*mib, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.NoError(t, b.ReleasePool(first))
	b.malloc(80*mib, 0)
}

func TestTwoCaptures(t *testing.T) {
	b := newBench(t, gib, "")
	require.NoError(t, b.BeginAllocateToPool(first, only(1)))
	require.NoError(t, b.BeginAllocateToPool(second, nil))
	b.malloc(1, 1)
	b.malloc(1, 2)
	b.malloc(5*mib, 2)
	for at, want := range map[int]int{0: 1, 1: 2} {
		require.Equal(t, want, segments(b.Private()[at]))
	}
	require.NoError(t, b.EndAllocateToPool(first))
	b.malloc(1, 1)
	require.Equal(t, 3, segments(b.Private()[1]))
}

func segments(g *graphPool) (count int) {
	for _, l := range slices.Concat(g.small.lists, g.large.lists) {
		count += l.segments
	}
	return count
}

func TestNothingIsGivenBackDuringACapture(t *testing.T) {
	b := newBench(t, 100*mib, "max_split_size=32MiB,memory_fraction=1,garbage_collection_threshold=0.1")
	b.free(b.malloc(60*mib, 0))
	require.NoError(t, b.BeginAllocateToPool(first, only(1)))
	for _, stream := range []pool.Stream{0, 1} {
		_, err := b.Malloc(90*mib, stream)
		require.ErrorIs(t, err, pool.ErrOutOfMemory)
	}
	_, err := b.Trim()
	require.ErrorIs(t, err, pool.ErrCapturing)
	require.Equal(t, uint64(60*mib), b.Stats().Reserved)
	require.Zero(t, b.detail().AllocRetries)
	require.NoError(t, b.EndAllocateToPool(first))
	b.malloc(90*mib, 0)
}

func TestDestroyEndsCaptures(t *testing.T) {
	b := newBench(t, gib, "")
	require.NoError(t, b.BeginAllocateToPool(first, nil))
	b.malloc(5*mib, 0)
	require.NoError(t, b.RecordStream(b.malloc(1, 0), 5))
	require.NoError(t, b.Destroy())
	require.Zero(t, b.device.held)
	require.Empty(t, b.Private())
	b.malloc(5*mib, 0)
	_, err := b.Trim()
	require.NoError(t, err)
}
