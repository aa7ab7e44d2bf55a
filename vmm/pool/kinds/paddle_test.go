package kinds_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/paddle"
)

// The default options are in TestPaddleAgainstModel.
func TestPaddleAlignsSizesWithTheirDescriptor(t *testing.T) {
	for _, test := range []struct {
		options       string
		wanted, given uint64
	}{
		{"descriptor=0", 256, 256},
		{"descriptor=0", 257, 512},
		{"min_chunk=4KiB", 4096 - 64, 4096},
		{"min_chunk=4KiB", 4096 - 63, 8192},
		{"min_chunk=768,descriptor=0", 769, 1536},
	} {
		require.Equal(t, test.given, newPool(t, "paddle", 4*gib, test.options).malloc(test.wanted).Size, "%+v", test)
	}
}

func TestPaddleRefills(t *testing.T) {
	for _, test := range []struct {
		options string
		asked   []uint64
	}{
		{"max_chunk=4MiB", []uint64{4 * mib, 4 * mib}},
		{"initial=16MiB,reallocate=8MiB", []uint64{16 * mib, 8 * mib}},
		{"initial=16MiB,reallocate=2MiB", []uint64{16 * mib, 4 * mib}}, // what is needed is more
		{"max_chunk=4MiB,initial=8MiB", []uint64{8 * mib, 4 * mib}},
		{"max_chunk=4MiB,initial=8388607", []uint64{8 * mib, 4 * mib}},
	} {
		p := newPool(t, "paddle", gib, test.options+",descriptor=0")
		for len(p.source.asked) < 2 {
			p.malloc(4 * mib)
		}
		require.Equal(t, test.asked, p.source.asked, test.options)
	}
	p := newPool(t, "paddle", 4*gib, "")
	p.malloc(1)
	require.Equal(t, []uint64{gib}, p.source.asked)
	p.refuses(1<<63, pool.ErrTooLarge)
}

func TestAnEmptiedPaddlePoolRefillsAsANewOne(t *testing.T) {
	p := newPool(t, "paddle", gib, "initial=16MiB,reallocate=8MiB")
	p.free(p.malloc(1))
	p.trim()
	p.malloc(1)
	require.Equal(t, []uint64{16 * mib, 16 * mib}, p.source.asked)
}

func TestHugePaddleBlocksAreTheSystemAllocators(t *testing.T) {
	p := newPool(t, "paddle", gib, "max_chunk=4MiB")
	p.malloc(4*mib - 64)
	b := p.malloc(4*mib - 63)
	require.Equal(t, []uint64{4 * mib, 4*mib + 256}, p.source.asked)
	require.Equal(t, paddle.Detail{Used: 4 * mib, Huge: 4*mib + 256, HugeBlocks: 1}, p.Stats().Detail)
	require.EqualValues(t, 8*mib+256, p.Stats().Live)

	p.source.RefuseFree = errors.New("busy")
	require.ErrorIs(t, p.Free(b.Address), p.source.RefuseFree)
	require.EqualValues(t, 2, p.Stats().Blocks, "still live")
	require.ErrorIs(t, p.Destroy(), p.source.RefuseFree)
	require.Zero(t, p.Stats().Blocks)
	require.Equal(t, paddle.Detail{Free: 8*mib + 256, FreeChunks: 2, LargestFree: 4*mib + 256}, p.Stats().Detail)
	p.source.RefuseFree = nil

	p.malloc(4*mib - 64)
	require.Equal(t, b.Address, p.malloc(4*mib-64).Address, "what stayed is free memory")
	require.Len(t, p.source.asked, 2)
	b = p.malloc(8 * mib)
	p.free(b)
	require.ErrorIs(t, p.Free(b.Address), pool.ErrInvalidAddress)
}

// Each slip in the text's Release, and in Paddle's, would show here: it compares sizes with = and not ==,
// takes chunks behind a released one off the set without releasing them, and forgets no refill.
func TestPaddleTrimGivesBackWholeFreeRefillsOnly(t *testing.T) {
	p := newPool(t, "paddle", gib, "max_chunk=1MiB,descriptor=0")
	var blocks []pool.Block
	for _, size := range []uint64{1024, 512, 512, 1024, 256, 768} {
		blocks = append(blocks, p.malloc(size*kib))
	}
	require.Len(t, p.source.asked, 4)
	p.free(blocks[0], blocks[1], blocks[3], blocks[4])
	require.EqualValues(t, 2*mib, p.trim())
	require.Equal(t, paddle.Detail{Used: mib + 256*kib, Free: 768 * kib, FreeChunks: 2, LargestFree: 512 * kib},
		p.Stats().Detail)
	require.Equal(t, blocks[1].Address, p.malloc(512*kib).Address, "the parts that are left serve on")
	require.Equal(t, blocks[4].Address, p.malloc(256*kib).Address)
	require.Len(t, p.source.asked, 4)
	require.Zero(t, p.trim())
}
