package freelist_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/freelist"
)

// base is where segments begin: aligned to 512 bytes, and no more.
const base = 0x7f00_0000_0200

func newPool(t *testing.T, capacity uint64, text string) *freelist.Pool {
	t.Helper()
	options, err := pool.ParseOptions(text)
	require.NoError(t, err)
	p, err := freelist.New(pool.NewRange(base, capacity), options)
	require.NoError(t, err)
	return p
}

func malloc(t *testing.T, p *freelist.Pool, size uint64) pool.Block {
	t.Helper()
	b, err := p.Malloc(size, 0)
	require.NoError(t, err)
	return b
}

func TestBlocksAreCutOffInOrder(t *testing.T) {
	p := newPool(t, 16<<30, "")
	first := malloc(t, p, 1)
	require.Equal(t, uint64(1024), first.Size)
	for i, size := range []uint64{1024, 1025, 3 << 30} {
		before := p.Stats().Live
		b := malloc(t, p, size)
		require.Equal(t, (size+1023)/1024*1024, b.Size, i)
		require.Equal(t, first.Address+uintptr(before), b.Address)
	}
	require.Equal(t, uint64(5<<30), p.Stats().Reserved, "the text's buffers have 5 GiB")
}

func TestFreedBlocksServeTheirOwnSizeLastFirst(t *testing.T) {
	p := newPool(t, 1<<30, "buffer=1MiB")
	var freed []pool.Block
	for range 3 {
		freed = append(freed, malloc(t, p, 2048))
	}
	for _, b := range freed {
		require.NoError(t, p.Free(b.Address))
	}
	other := malloc(t, p, 1024)
	require.Greater(t, other.Address, freed[2].Address, "a block of another size is not split")
	for i := range freed {
		require.Equal(t, freed[2-i], malloc(t, p, 1025))
	}
	require.Equal(t, freelist.Detail{}, p.Stats().Detail)
}

func TestTheEndOfABufferIsLost(t *testing.T) {
	p := newPool(t, 1<<30, "buffer=1MiB")
	malloc(t, p, 700<<10)
	large := malloc(t, p, 400<<10)
	require.Equal(t, uint64(2<<20), p.Stats().Reserved)
	malloc(t, p, 600<<10)
	require.Equal(t, freelist.Detail{Lost: 324 << 10}, p.Stats().Detail)
	malloc(t, p, 300<<10)
	require.Equal(t, uint64(3<<20), p.Stats().Reserved, "the first buffer's end would have had room")
	require.NoError(t, p.Free(large.Address))
	require.Equal(t, freelist.Detail{Listed: 400 << 10, Lost: 348 << 10}, p.Stats().Detail)
}

func TestTrimForgetsTheBlocksOfItsBuffers(t *testing.T) {
	p := newPool(t, 1<<30, "buffer=1MiB")
	gone, kept := malloc(t, p, 1<<20), malloc(t, p, 512<<10)
	listed := malloc(t, p, 256<<10)
	require.NoError(t, p.Free(gone.Address))
	require.NoError(t, p.Free(listed.Address))
	freed, err := p.Trim()
	require.NoError(t, err)
	require.Equal(t, uint64(1<<20), freed)
	require.Equal(t, freelist.Detail{Listed: 256 << 10}, p.Stats().Detail)
	require.Equal(t, listed, malloc(t, p, 256<<10), "its buffer is still there")
	require.Equal(t, uint64(1), p.Stats().Segments)
	malloc(t, p, 1<<20)
	require.Equal(t, uint64(2), p.Stats().Segments, "the block of the other buffer was not reused")
	require.NoError(t, p.Free(kept.Address))
}

func TestIdleBuffersGoWhenTheSourceHasNoRoom(t *testing.T) {
	p := newPool(t, 2<<20, "buffer=1MiB")
	first, second := malloc(t, p, 1<<20), malloc(t, p, 1<<20)
	_, err := p.Malloc(512<<10, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.NoError(t, p.Free(first.Address))
	b := malloc(t, p, 512<<10)
	require.Equal(t, first.Address, b.Address)
	require.Equal(t, uint64(2<<20), p.Stats().Reserved)
	require.Equal(t, uint64(1), p.Stats().SourceFrees)
	require.NoError(t, p.Free(second.Address))
}

func TestSizesAboveABuffer(t *testing.T) {
	p := newPool(t, 1<<30, "buffer=3KiB")
	require.Equal(t, uint64(3072), malloc(t, p, 3072).Size)
	_, err := p.Malloc(3073, 0)
	require.ErrorIs(t, err, pool.ErrTooLarge)
}

func TestOptions(t *testing.T) {
	for _, text := range []string{"buffer=0", "buffer=1023", "buffer=1025", "buffer=x", "size=1"} {
		options, err := pool.ParseOptions(text)
		require.NoError(t, err)
		_, err = freelist.New(pool.NewRange(base, 1<<30), options)
		require.ErrorIs(t, err, pool.ErrOption, text)
	}
}
