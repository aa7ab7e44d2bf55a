package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/freelist"
)

func TestFreelistCutsBlocksOffInOrder(t *testing.T) {
	p := newPool(t, "freelist", 16*gib, "")
	first := p.malloc(1)
	require.EqualValues(t, 1024, first.Size)
	for i, size := range []uint64{1024, 1025, 3 * gib} {
		before := p.Stats().Live
		b := p.malloc(size)
		require.Equal(t, (size+1023)/1024*1024, b.Size, i)
		require.Equal(t, first.Address+uintptr(before), b.Address)
	}
	require.EqualValues(t, 5*gib, p.Stats().Reserved, "the text's buffers have 5 GiB")
}

func TestFreelistBlocksServeTheirOwnSizeLastFirst(t *testing.T) {
	p := newPool(t, "freelist", gib, "buffer=1MiB")
	freed := p.mallocs(3, 2048)
	p.free(freed...)
	require.Greater(t, p.malloc(1024).Address, freed[2].Address, "a block of another size is not split")
	for i := range freed {
		require.Equal(t, freed[2-i], p.malloc(1025))
	}
	require.Equal(t, freelist.Detail{}, p.Stats().Detail)
}

func TestFreelistLosesTheEndOfABuffer(t *testing.T) {
	p := newPool(t, "freelist", gib, "buffer=1MiB")
	p.malloc(700 * kib)
	large := p.malloc(400 * kib)
	require.EqualValues(t, 2*mib, p.Stats().Reserved)
	p.malloc(600 * kib)
	require.Equal(t, freelist.Detail{Lost: 324 * kib}, p.Stats().Detail)
	p.malloc(300 * kib)
	require.EqualValues(t, 3*mib, p.Stats().Reserved, "the first buffer's end would have had room")
	p.free(large)
	require.Equal(t, freelist.Detail{Listed: 400 * kib, Lost: 348 * kib}, p.Stats().Detail)
}

func TestFreelistForgetsTheBlocksOfTrimmedBuffers(t *testing.T) {
	p := newPool(t, "freelist", gib, "buffer=1MiB")
	gone := p.malloc(mib)
	p.malloc(512 * kib)
	listed := p.malloc(256 * kib)
	p.free(gone, listed)
	require.EqualValues(t, mib, p.trim())
	require.Equal(t, freelist.Detail{Listed: 256 * kib}, p.Stats().Detail)
	require.Equal(t, listed, p.malloc(256*kib), "its buffer is still there")
	require.EqualValues(t, 1, p.Stats().Segments)
	p.malloc(mib)
	require.EqualValues(t, 2, p.Stats().Segments, "the block of the other buffer was not reused")
}

func TestFreelistGivesIdleBuffersBackWhenTheSourceHasNoRoom(t *testing.T) {
	p := newPool(t, "freelist", 2*mib, "buffer=1MiB")
	blocks := p.mallocs(2, mib)
	p.refuses(512*kib, pool.ErrOutOfMemory)
	p.free(blocks[0])
	require.Equal(t, blocks[0].Address, p.malloc(512*kib).Address)
	require.EqualValues(t, 2*mib, p.Stats().Reserved)
	require.EqualValues(t, 1, p.Stats().SourceFrees)
}

func TestFreelistAndSizesAboveABuffer(t *testing.T) {
	p := newPool(t, "freelist", gib, "buffer=3KiB")
	require.EqualValues(t, 3072, p.malloc(3072).Size)
	p.refuses(3073, pool.ErrTooLarge)
}

// Every block of naive is a segment of its own, of exactly its size.
func TestNaiveBlocksAreSegments(t *testing.T) {
	p := newPool(t, "naive", mib, "")
	sizes := []uint64{1, 1000, 4096}
	for i, size := range sizes {
		require.Equal(t, size, p.malloc(size).Size)
		require.Equal(t, sizes[:i+1], p.source.asked)
	}
	require.NoError(t, p.Destroy())
	require.EqualValues(t, 3, p.Stats().Frees)
	require.EqualValues(t, 3, p.Stats().SourceFrees)
}
