package slab_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/slab"
)

// base is where segments begin: aligned to 512 bytes, and no more.
const base = 0x7f00_0000_0200

func newPool(t *testing.T, capacity uint64, text string) *slab.Pool {
	t.Helper()
	options, err := pool.ParseOptions(text)
	require.NoError(t, err)
	p, err := slab.New(pool.NewRange(base, capacity), options)
	require.NoError(t, err)
	return p
}

func malloc(t *testing.T, p *slab.Pool, count int, size uint64) []pool.Block {
	t.Helper()
	var blocks []pool.Block
	for range count {
		b, err := p.Malloc(size, 0)
		require.NoError(t, err)
		blocks = append(blocks, b)
	}
	return blocks
}

func free(t *testing.T, p *slab.Pool, blocks []pool.Block) {
	t.Helper()
	for _, b := range blocks {
		require.NoError(t, p.Free(b.Address))
	}
}

// requireSlabs checks how many slabs there are and how many of them are empty.
func requireSlabs(t *testing.T, p *slab.Pool, slabs, empty int) {
	t.Helper()
	require.Equal(t, slab.Detail{Slabs: slabs, EmptySlabs: empty}, p.Stats().Detail)
}

func TestObjectsLieSideBySide(t *testing.T) {
	p := newPool(t, 8<<30, "")
	blocks := malloc(t, p, 51, 1100) // 51 * 1280 = 65280
	for i, b := range blocks {
		require.Equal(t, pool.Block{Address: blocks[0].Address + uintptr(i*1280), Size: 1280}, b)
	}
	requireSlabs(t, p, 1, 0)
	other := malloc(t, p, 1, 500)
	requireSlabs(t, p, 2, 0)
	malloc(t, p, 1, 1280)
	requireSlabs(t, p, 3, 0)
	require.Equal(t, uint64(4<<30), p.Stats().Reserved, "all in one root")
	free(t, p, blocks[20:21])
	free(t, p, other)
	require.Equal(t, blocks[20], malloc(t, p, 1, 1280)[0], "the object freed last, of a slab in use")
}

func TestEmptySlabsAreKeptUpToANumber(t *testing.T) {
	for _, c := range []struct {
		text string
		kept int
	}{{"", 1}, {"keep=3", 3}, {"keep=0", 0}} {
		p := newPool(t, 8<<30, c.text)
		blocks := malloc(t, p, 5*256, 256)
		requireSlabs(t, p, 5, 0)
		free(t, p, blocks)
		requireSlabs(t, p, c.kept, c.kept)
		malloc(t, p, 1, 512)
		requireSlabs(t, p, c.kept+1, c.kept)
		malloc(t, p, 1, 256)
		requireSlabs(t, p, max(c.kept, 1)+1, max(c.kept, 1)-1)
	}
}

func TestDestroyEndsAllSlabs(t *testing.T) {
	p := newPool(t, 8<<30, "keep=2")
	malloc(t, p, 300, 256)
	free(t, p, malloc(t, p, 300, 512))
	requireSlabs(t, p, 4, 2)
	require.NoError(t, p.Destroy())
	requireSlabs(t, p, 0, 0)
	malloc(t, p, 1, 256)
	requireSlabs(t, p, 1, 0)
}

func TestEmptySlabsServeOtherClasses(t *testing.T) {
	p := newPool(t, 1<<20, "capacity=1MiB,max=8KiB")
	small := malloc(t, p, 16*256, 256)
	_, err := p.Malloc(512, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.NoError(t, p.Free(small[0].Address))
	_, err = p.Malloc(512, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory, "the slab of the object is not empty")
	free(t, p, small[1:256])
	require.Equal(t, small[0].Address, malloc(t, p, 1, 512)[0].Address)
	requireSlabs(t, p, 16, 0)
}

func TestLargeBlocksAreRoundedToPages(t *testing.T) {
	p := newPool(t, 16<<30, "")
	large := malloc(t, p, 1, 1<<20+1)[0]
	require.Equal(t, uint64(1<<20+64<<10), large.Size, "not 2 MiB")
	requireSlabs(t, p, 0, 0)
	huge := malloc(t, p, 1, 5<<30)[0]
	require.Equal(t, uint64(5<<30), huge.Size)
	require.Equal(t, uint64(9<<30), p.Stats().Reserved, "beside the root")
	require.NoError(t, p.Free(huge.Address))
	require.Equal(t, uint64(4<<30), p.Stats().Reserved)
}

func TestWhatNoRootHasRoomForIsItsOwnSegment(t *testing.T) {
	p := newPool(t, 6<<30, "")
	blocks := malloc(t, p, 2, 3<<29)
	require.Equal(t, uint64(4<<30), p.Stats().Reserved)
	blocks = append(blocks, malloc(t, p, 1, 2<<30)...)
	require.Equal(t, uint64(6<<30), p.Stats().Reserved, "there is no room for a second root")
	free(t, p, blocks)
	freed, err := p.Trim()
	require.NoError(t, err)
	require.Equal(t, uint64(4<<30), freed)
}

func TestSlabsThatAreSegments(t *testing.T) {
	p := newPool(t, 1<<30, "pages=source")
	small := malloc(t, p, 8193, 256)
	require.Equal(t, uint64(4<<20), p.Stats().Reserved)
	large := malloc(t, p, 1, 3<<20)
	require.Equal(t, uint64(7<<20), p.Stats().Reserved)
	free(t, p, large)
	free(t, p, small)
	require.Equal(t, uint64(2<<20), p.Stats().Reserved, "one empty slab is kept")
	freed, err := p.Trim()
	require.NoError(t, err)
	require.Equal(t, uint64(2<<20), freed)
}

// Where slabs are segments, there is no root into which they must fit.
func TestObjectsAndSlabsThatAreSegments(t *testing.T) {
	p := newPool(t, 8<<30, "pages=source,max=128MiB")
	require.Equal(t, uint64(112<<20), malloc(t, p, 1, 100<<20)[0].Size)
	require.Equal(t, uint64(1<<30), p.Stats().Reserved)
	p = newPool(t, 8<<30, "pages=source,page=2GiB")
	malloc(t, p, 1, 1)
	require.Equal(t, uint64(2<<30), p.Stats().Reserved)
}

// A slab of 64 GiB has 2^28 objects: only those that were handed out are known one by one.
func TestTheLargestSlabsCostLittle(t *testing.T) {
	for _, text := range []string{"page=64GiB,capacity=256GiB", "page=1TiB,capacity=4TiB", "pages=source,page=1TiB"} {
		source := pool.NewRange(base, 1<<50)
		options, err := pool.ParseOptions(text)
		require.NoError(t, err)
		before := allocated()
		p, err := slab.New(source, options)
		require.NoError(t, err)
		blocks := malloc(t, p, 1000, 256)
		free(t, p, blocks[:500])
		blocks = append(malloc(t, p, 500, 256), blocks[500:]...)
		require.Less(t, allocated()-before, uint64(2<<20), "of host memory, for %s", text)
		checked := map[uintptr]bool{}
		for _, b := range blocks {
			require.False(t, checked[b.Address])
			checked[b.Address] = true
		}
		free(t, p, blocks)
		requireSlabs(t, p, 1, 1)
		require.NoError(t, p.Destroy())
	}
}

// allocated returns how many bytes of host memory were ever allocated.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// The default root is 4 GiB. A source that has less, or cannot spare that much, gives slabs one by one.
func TestASourceWithoutRoomForARoot(t *testing.T) {
	p := newPool(t, 256<<20, "")
	blocks := malloc(t, p, 4*256, 256)
	blocks = append(blocks, malloc(t, p, 20, 700<<10)...)
	blocks = append(blocks, malloc(t, p, 10, 3<<20)...)
	require.Equal(t, uint64(4*64<<10+2*8<<20+10*3<<20), p.Stats().Reserved)
	free(t, p, blocks)
	freed, err := p.Trim()
	require.NoError(t, err)
	require.Equal(t, uint64(64<<10+8<<20), freed, "one empty slab of each class was kept")
	require.Zero(t, p.Stats().Segments)

	// Until memory is out: an empty slab of one class makes room for another class.
	for {
		b, err := p.Malloc(1<<20, 0)
		if err != nil {
			require.ErrorIs(t, err, pool.ErrOutOfMemory)
			break
		}
		blocks = append(blocks, b)
	}
	require.Greater(t, p.Stats().Live, uint64(240<<20))
	_, err = p.Malloc(256<<10, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.NoError(t, p.Destroy())
	malloc(t, p, 1, 256<<10)
}

func TestOptions(t *testing.T) {
	for _, text := range []string{
		"max=0", "max=65MiB", "page=0", "page=256", "page=96KiB", "page=2GiB",
		"page=2TiB,capacity=16TiB", "pages=other", "keep=-1",
		"capacity=1KiB", "capacity=4294967297", "pages=source,capacity=1GiB", "objects=3",
		"pages=source,max=0", "pages=source,page=2TiB", "pages=source,page=96KiB",
	} {
		options, err := pool.ParseOptions(text)
		require.NoError(t, err)
		_, err = slab.New(pool.NewRange(base, 1<<30), options)
		require.ErrorIs(t, err, pool.ErrOption, text)
	}
}
