package caching

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestABlockFillsACacheLine(t *testing.T) { require.EqualValues(t, 64, unsafe.Sizeof(block{})) }

func TestSmallAndLargeApart(t *testing.T) {
	b := newBench(t, gib, "")
	b.malloc(mib/2, 0) // leaves 1.5 MiB in a small segment
	b.malloc(mib+mib/10, 0)
	d := b.detail()
	require.Equal(t, int64(2*mib), d.ReservedBytes.Small.Current)
	require.Equal(t, int64(20*mib), d.ReservedBytes.Large.Current)
	b.malloc(mib, 0) // of at most 1 MiB: from the small one, the large one has room, too
	require.Equal(t, int64(mib+mib/2), b.detail().AllocatedBytes.Small.Current)
	require.Equal(t, uint64(22*mib), b.Stats().Reserved)
}

func TestSplitting(t *testing.T) {
	for _, c := range []struct {
		name              string
		first, then, size uint64 // the block for then, out of a free one of first bytes
	}{
		{"small, all", mib, mib, mib},
		{"small, 512 left", mib, mib - 512, mib - 512},
		{"large, all", 12 * mib, 12 * mib, 12 * mib},
		{"large, 1 MiB left", 12 * mib, 11 * mib, 12 * mib},
		{"large, 1 MiB and 512 left", 12 * mib, 11*mib - 512, 11*mib - 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, gib, "")
			b.free(b.malloc(c.first, 0))
			block, err := b.Malloc(c.then, 0)
			require.NoError(t, err)
			require.Equal(t, c.size, block.Size)
			require.Equal(t, uint64(1), b.Stats().Segments)
		})
	}
}

func TestMerging(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		b := newBench(t, gib, "")
		var blocks []uintptr
		for range 4 {
			blocks = append(blocks, b.malloc(5*mib, 0))
		}
		require.Equal(t, uint64(1), b.Stats().Segments, "four blocks of 5 MiB fill a segment of 20")
		for _, i := range order {
			b.free(blocks[i])
		}
		snapshot := b.snapshot()
		require.Len(t, snapshot, 1)
		require.Equal(t, []BlockInfo{{Size: 20 * mib, State: "inactive"}}, snapshot[0].Blocks)
	}
}

func TestBestFit(t *testing.T) {
	b := newBench(t, gib, "")
	// Free blocks of 4, 2, 3 and 2 MiB, apart.
	var apart []uintptr
	for _, size := range []uint64{4, 2, 3, 2} {
		apart = append(apart, b.malloc(size*mib, 0))
		b.malloc(mib+512, 0)
	}
	b.free(apart[0], apart[3], apart[2], apart[1])
	require.Equal(t, apart[1], b.malloc(2*mib, 0), "the smallest, at the lowest address")
	require.Equal(t, apart[3], b.malloc(2*mib, 0))
	require.Equal(t, apart[2], b.malloc(2*mib, 0))
	require.Equal(t, apart[0], b.malloc(2*mib, 0))
	require.Equal(t, uint64(1), b.Stats().Segments)
}

func TestStreamsApart(t *testing.T) {
	b := newBench(t, gib, "")
	one := b.malloc(5*mib, 1)
	b.free(one)
	two := b.malloc(5*mib, 2)
	require.Equal(t, uint64(2), b.Stats().Segments)
	b.free(two)
	for range 3 {
		require.Equal(t, two, b.malloc(5*mib, 2))
		require.Equal(t, one, b.malloc(5*mib, 1))
		b.free(one, two)
	}
	released, err := b.Trim()
	require.NoError(t, err)
	require.Equal(t, uint64(40*mib), released)
	require.Empty(t, b.largePool.lists, "nothing is kept for a stream without segments")
}

func TestMaxSplitSize(t *testing.T) {
	b := newBench(t, gib, "max_split_size=32MiB")
	large := b.malloc(64*mib, 0)
	require.Equal(t, int64(1), b.detail().OversizeAllocations.Current)
	require.Equal(t, int64(1), b.detail().OversizeSegments.Current)
	b.free(large)
	require.NotEqual(t, large, b.malloc(31*mib, 0), "kept from smaller requests")
	require.NotEqual(t, large, b.malloc(44*mib, 0), "and from those that would waste 20 MiB of it")
	block, err := b.Malloc(44*mib+512, 0)
	require.NoError(t, err)
	require.Equal(t, large, block.Address)
	require.Equal(t, uint64(64*mib), block.Size, "not split")

	exact := b.malloc(32*mib, 0)
	b.free(exact)
	require.NotEqual(t, exact, b.malloc(32*mib-512, 0))
	b.free(b.malloc(50*mib, 1))
	block, err = b.Malloc(32*mib, 1)
	require.NoError(t, err)
	require.Equal(t, uint64(50*mib), block.Size)
}
