package kinds_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/slab"
)

// requireSlabs checks how many slabs there are and how many of them are empty.
func (m *made) requireSlabs(slabs, empty int) {
	m.t.Helper()
	require.Equal(m.t, slab.Detail{Slabs: slabs, EmptySlabs: empty}, m.Stats().Detail)
}

func TestSlabObjectsLieSideBySide(t *testing.T) {
	p := newPool(t, "slab", 8*gib, "")
	blocks := p.mallocs(51, 1100) // 51 * 1280 = 65280
	for i, b := range blocks {
		require.Equal(t, pool.Block{Address: blocks[0].Address + uintptr(i*1280), Size: 1280}, b)
	}
	p.requireSlabs(1, 0)
	other := p.malloc(500)
	p.requireSlabs(2, 0)
	p.malloc(1280)
	p.requireSlabs(3, 0)
	require.EqualValues(t, 4*gib, p.Stats().Reserved, "all in one root")
	p.free(blocks[20:21]...)
	p.free(other)
	require.Equal(t, blocks[20], p.malloc(1280), "the object freed last, of a slab in use")
}

func TestSlabEmptySlabsAreKeptUpToANumber(t *testing.T) {
	for _, c := range []struct {
		text string
		kept int
	}{{"", 1}, {"keep=3", 3}, {"keep=0", 0}} {
		p := newPool(t, "slab", 8*gib, c.text)
		blocks := p.mallocs(5*256, 256)
		p.requireSlabs(5, 0)
		p.free(blocks...)
		p.requireSlabs(c.kept, c.kept)
		p.malloc(512)
		p.requireSlabs(c.kept+1, c.kept)
		p.malloc(256)
		p.requireSlabs(max(c.kept, 1)+1, max(c.kept, 1)-1)
	}
}

func TestSlabDestroyEndsAllSlabs(t *testing.T) {
	p := newPool(t, "slab", 8*gib, "keep=2")
	p.mallocs(300, 256)
	p.free(p.mallocs(300, 512)...)
	p.requireSlabs(4, 2)
	require.NoError(t, p.Destroy())
	p.requireSlabs(0, 0)
	p.malloc(256)
	p.requireSlabs(1, 0)
}

func TestSlabEmptySlabsServeOtherClasses(t *testing.T) {
	p := newPool(t, "slab", mib, "capacity=1MiB,max=8KiB")
	small := p.mallocs(16*256, 256)
	p.refuses(512, pool.ErrOutOfMemory)
	p.free(small[0])
	p.refuses(512, pool.ErrOutOfMemory) // the slab of the object is not empty
	p.free(small[1:256]...)
	require.Equal(t, small[0].Address, p.malloc(512).Address)
	p.requireSlabs(16, 0)
}

func TestSlabLargeBlocksAreRoundedToPages(t *testing.T) {
	p := newPool(t, "slab", 16*gib, "")
	large := p.malloc(mib + 1)
	require.EqualValues(t, mib+64*kib, large.Size, "not 2 MiB")
	p.requireSlabs(0, 0)
	huge := p.malloc(5 * gib)
	require.EqualValues(t, 5*gib, huge.Size)
	require.EqualValues(t, 9*gib, p.Stats().Reserved, "beside the root")
	p.free(huge)
	require.EqualValues(t, 4*gib, p.Stats().Reserved)
}

func TestSlabOfWhatNoRootHasRoomForIsASegment(t *testing.T) {
	p := newPool(t, "slab", 6*gib, "")
	blocks := p.mallocs(2, 3<<29)
	require.EqualValues(t, 4*gib, p.Stats().Reserved)
	blocks = append(blocks, p.mallocs(1, 2*gib)...)
	require.EqualValues(t, 6*gib, p.Stats().Reserved, "there is no room for a second root")
	p.free(blocks...)
	require.EqualValues(t, 4*gib, p.trim())
}

func TestSlabsThatAreSegments(t *testing.T) {
	p := newPool(t, "slab", gib, "pages=source")
	small := p.mallocs(8193, 256)
	require.EqualValues(t, 4*mib, p.Stats().Reserved)
	large := p.malloc(3 * mib)
	require.EqualValues(t, 7*mib, p.Stats().Reserved)
	p.free(large)
	p.free(small...)
	require.EqualValues(t, 2*mib, p.Stats().Reserved, "one empty slab is kept")
	require.EqualValues(t, 2*mib, p.trim())
}

// Where slabs are segments, there is no root into which they must fit.
func TestObjectsOfSlabsThatAreSegments(t *testing.T) {
	p := newPool(t, "slab", 8*gib, "pages=source,max=128MiB")
	require.EqualValues(t, 112*mib, p.malloc(100*mib).Size)
	require.EqualValues(t, gib, p.Stats().Reserved)
	p = newPool(t, "slab", 8*gib, "pages=source,page=2GiB")
	p.malloc(1)
	require.EqualValues(t, 2*gib, p.Stats().Reserved)
}

// A slab of 64 GiB has 2^28 objects: only those that were handed out are known one by one.
func TestTheLargestSlabsCostLittle(t *testing.T) {
	for _, text := range []string{"page=64GiB,capacity=256GiB", "page=1TiB,capacity=4TiB", "pages=source,page=1TiB"} {
		before := allocated()
		p := newPool(t, "slab", 1<<50, text)
		blocks := p.mallocs(1000, 256)
		p.free(blocks[:500]...)
		blocks = append(p.mallocs(500, 256), blocks[500:]...)
		require.Less(t, allocated()-before, uint64(2*mib), "of host memory, for %s", text)
		checked := map[uintptr]bool{}
		for _, b := range blocks {
			require.False(t, checked[b.Address])
			checked[b.Address] = true
		}
		p.free(blocks...)
		p.requireSlabs(1, 1)
	}
}

// allocated returns how many bytes of host memory were ever allocated.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// The default root is 4 GiB. A source that has less, or cannot spare that much, gives slabs one by one.
func TestSlabWithoutRoomForARoot(t *testing.T) {
	p := newPool(t, "slab", 256*mib, "")
	blocks := p.mallocs(4*256, 256)
	blocks = append(blocks, p.mallocs(20, 700*kib)...)
	blocks = append(blocks, p.mallocs(10, 3*mib)...)
	require.EqualValues(t, 4*64*kib+2*8*mib+10*3*mib, p.Stats().Reserved)
	p.free(blocks...)
	require.EqualValues(t, 64*kib+8*mib, p.trim(), "one empty slab of each class was kept")
	require.Zero(t, p.Stats().Segments)

	// Until memory is out: an empty slab of one class makes room for another class.
	for {
		b, err := p.Malloc(mib, 0)
		if err != nil {
			require.ErrorIs(t, err, pool.ErrOutOfMemory)
			break
		}
		blocks = append(blocks, b)
	}
	require.Greater(t, p.Stats().Live, uint64(240*mib))
	p.refuses(256*kib, pool.ErrOutOfMemory)
	require.NoError(t, p.Destroy())
	p.malloc(256 * kib)
}
