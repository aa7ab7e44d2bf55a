package caching

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestABlockFillsACacheLine(t *testing.T) { require.EqualValues(t, 64, unsafe.Sizeof(block{})) }

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
