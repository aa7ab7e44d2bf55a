package chunks

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// tiles returns the chunks of each region as the sizes of taken and, negative, of free ones, and checks
// that they are linked without gaps.
func tiles[T any](t *testing.T, table *Table[T]) (all [][]int) {
	t.Helper()
	for _, r := range table.Regions() {
		var sizes []int
		at, before := r.Address, None
		for h := r.First; h != None; h = table.At(h).Next {
			c := table.At(h)
			require.Equal(t, at, c.Address)
			require.Equal(t, before, c.Previous)
			require.Equal(t, !c.Taken(), table.IsFree(h))
			at, before = c.End(), h
			if c.Taken() {
				sizes = append(sizes, int(c.Size))
			} else {
				sizes = append(sizes, -int(c.Size))
			}
		}
		require.Equal(t, r.Address+uintptr(r.Size), at)
		all = append(all, sizes)
	}
	return all
}

func newTable(source pool.Source) *Table[uint8] {
	table := new(Table[uint8])
	table.Open("test", source)
	return table
}

func grow[T any](t *testing.T, table *Table[T], size uint64) Handle {
	t.Helper()
	h, err := table.Grow(size)
	require.NoError(t, err)
	return h
}

func ignore(Handle) {}

func TestSplitAndJoin(t *testing.T) {
	table := newTable(pool.NewRange(1<<20, 1<<20))
	require.False(t, table.IsFree(None))
	first := grow(t, table, 4096)
	table.At(first).Own = 7
	require.True(t, table.At(first).Whole())
	second := table.Split(first, 1024)
	third := table.Split(second, 1024)
	require.EqualValues(t, 7, table.At(third).Own)
	require.False(t, table.At(third).Whole())
	require.Equal(t, [][]int{{-1024, -1024, -2048}}, tiles(t, table))
	block := table.Take(second, 1000)
	require.Equal(t, pool.Block{Address: 1<<20 + 1024, Size: 1024}, block)
	require.Equal(t, [][]int{{-1024, 1024, -2048}}, tiles(t, table))
	h, err := table.End(block.Address)
	require.NoError(t, err)
	require.Equal(t, second, h)
	require.Equal(t, [][]int{{-1024, 1024, -2048}}, tiles(t, table), "taken until it is dropped")
	require.Zero(t, table.Stats().Blocks)
	table.At(h).Requested = 0
	table.Join(second)
	require.Equal(t, [][]int{{-1024, -3072}}, tiles(t, table))
	table.Join(first)
	require.Equal(t, [][]int{{-4096}}, tiles(t, table))
	require.Equal(t, second, table.Split(first, 256), "the handle dropped last is used again")
	require.Equal(t, third, table.Split(second, 256))
}

func TestOnlyLiveChunksCanEnd(t *testing.T) {
	table := newTable(pool.NewRange(1<<20, 1<<20))
	h := grow(t, table, 4096)
	for _, address := range []uintptr{0, 1 << 20, 1<<20 + 256} {
		_, err := table.End(address)
		require.ErrorIs(t, err, pool.ErrInvalidAddress)
		_, err = table.Find(address)
		require.ErrorIs(t, err, pool.ErrInvalidAddress)
	}
	block := table.Take(h, 1)
	found, err := table.Find(block.Address)
	require.NoError(t, err)
	require.Equal(t, h, found)
	_, err = table.End(block.Address)
	require.NoError(t, err)
	_, err = table.End(block.Address)
	require.ErrorIs(t, err, pool.ErrInvalidAddress)
	require.EqualValues(t, 1, table.Stats().Frees)
}

func TestSegmentsStayInOrder(t *testing.T) {
	source := pool.NewRange(1<<20, 1<<20)
	table := newTable(source)
	grow(t, table, 1024)
	grow(t, table, 2048)
	require.NoError(t, table.GiveBack(ignore, ignore))
	require.Empty(t, table.Regions())
	grow(t, table, 512)
	high := grow(t, table, 4096)
	table.Take(high, 1)
	require.NoError(t, table.GiveBack(ignore, ignore))
	low := grow(t, table, 256)
	require.Equal(t, [][]int{{-256}, {4096}}, tiles(t, table))
	require.Equal(t, low, table.Regions()[0].First)
}

// stubborn refuses to take one segment back.
type stubborn struct {
	*pool.Range
	address uintptr
}

var errStubborn = errors.New("not that one")

func (s *stubborn) Free(address uintptr, size uint64) error {
	if address == s.address {
		return errStubborn
	}
	return s.Range.Free(address, size)
}

func TestGiveBack(t *testing.T) {
	source := &stubborn{Range: pool.NewRange(1<<20, 1<<20)}
	table := newTable(source)
	grow(t, table, 1024)
	kept := grow(t, table, 2048)
	source.address = table.At(kept).Address
	live := grow(t, table, 4096)
	rest := table.Split(live, 1024)
	table.Take(rest, 1)
	require.EqualValues(t, 3072, table.Idle())

	forgotten := 0
	require.ErrorIs(t, table.GiveBack(func(Handle) { forgotten++ }, ignore), errStubborn)
	require.EqualValues(t, 6144, table.Stats().Reserved)
	require.Equal(t, 1, forgotten)
	require.Equal(t, [][]int{{-2048}, {-1024, 3072}}, tiles(t, table))
	require.ErrorIs(t, table.ReturnWhole(kept), errStubborn)

	var given []Handle
	table.Empty(func(_ uintptr, h Handle) {
		given = append(given, h)
		table.At(h).Requested = 0
		table.Join(live)
	})
	require.Equal(t, []Handle{rest}, given)
	require.Equal(t, [][]int{{-2048}, {-4096}}, tiles(t, table))
	source.address = 0
	require.NoError(t, table.GiveBack(ignore, ignore))
	require.Zero(t, source.Held())
	stats := table.Stats()
	require.EqualValues(t, []uint64{3, 3, 2, 0, 0},
		[]uint64{stats.SourceMallocs, stats.SourceFrees, stats.SourceFailures, stats.Reserved, stats.Live})
}

func TestAWholeSegmentIsReturned(t *testing.T) {
	source := pool.NewRange(1<<20, 1<<20)
	table := newTable(source)
	live, idle := grow(t, table, 1024), grow(t, table, 2048)
	table.Take(live, 1000)
	require.NoError(t, table.ReturnWhole(idle))
	_, err := table.End(table.At(live).Address)
	require.NoError(t, err)
	require.NoError(t, table.ReturnWhole(live))
	require.Empty(t, table.Regions())
	require.Zero(t, table.Stats().Requested)
	require.Zero(t, source.Held())
	_, err = table.Find(1 << 20)
	require.ErrorIs(t, err, pool.ErrInvalidAddress)
}

func reclaim(t *testing.T, b *BestFit, address uintptr) {
	t.Helper()
	h, err := b.End(address)
	require.NoError(t, err)
	require.NoError(t, b.Reuse(address, h))
}

func always(_, _ uintptr) bool { return true }

func TestSegmentsThatTouchAreConnected(t *testing.T) {
	source := pool.NewRange(1<<20, 1<<20)
	var b BestFit
	b.Open("test", source)
	connect := func(size uint64) {
		h := grow(t, &b.Table, size)
		b.Connect(h, always)
		b.Add(h)
	}
	serve := func(size uint64) pool.Block {
		block, found := b.Serve(size, size, 0)
		require.True(t, found)
		return block
	}
	connect(1024)
	connect(2048)
	connect(1024)
	require.Equal(t, [][]int{{-4096}}, tiles(t, &b.Table))
	block := serve(2048) // across the first two
	require.Equal(t, [][]int{{2048, -2048}}, tiles(t, &b.Table))
	require.NoError(t, b.Trim())
	require.EqualValues(t, 3072, b.Stats().Reserved, "without the third; the others are in use")
	require.Equal(t, [][]int{{2048, -1024}}, tiles(t, &b.Table))
	connect(1024)
	require.Equal(t, [][]int{{2048, -2048}}, tiles(t, &b.Table))
	last := serve(512)
	reclaim(t, &b, block.Address)
	require.Equal(t, [][]int{{-2048, 512, -1536}}, tiles(t, &b.Table))

	require.NoError(t, b.Trim())
	require.EqualValues(t, 2048, b.Stats().Reserved, "the second, where a block lies")
	require.Equal(t, [][]int{{-1024, 512, -512}}, tiles(t, &b.Table))
	connect(1024) // in the place of the first: below what is there
	require.Equal(t, [][]int{{-2048, 512, -512}}, tiles(t, &b.Table))
	reclaim(t, &b, last.Address)
	b.Empty(func(_ uintptr, h Handle) { b.Add(h) })
	require.NoError(t, b.Trim())
	require.Zero(t, source.Held())

	grow(t, &b.Table, 1024)
	apart := grow(t, &b.Table, 1024)
	b.Connect(apart, func(below, above uintptr) bool {
		require.Equal(t, []uintptr{1 << 20, 1<<20 + 1024}, []uintptr{below, above})
		return false
	})
	require.Len(t, b.Regions(), 2)
}

// requireListed checks that exactly the free chunks can be found, and that free neighbours were joined.
func requireListed(t *testing.T, b *BestFit) {
	t.Helper()
	free, largest := 0, uint64(0)
	for _, r := range b.Regions() {
		for h := r.First; h != None; h = b.At(h).Next {
			c := b.At(h)
			if c.Taken() {
				continue
			}
			e, found := b.free.Ceiling(c.Key())
			require.True(t, found)
			require.Equal(t, h, Handle(e.Value))
			require.False(t, b.IsFree(c.Previous))
			free++
			largest = max(largest, c.Size)
		}
	}
	require.Equal(t, free, b.FreeChunks())
	require.Equal(t, largest, b.Largest())
}

// Segments come and go at random places, some are refused, and blocks lie across them.
func TestConnectedSegmentsAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 9))
		source := &stubborn{Range: pool.NewRange(1<<20, 64<<10)}
		var b BestFit
		b.Open("test", source)
		var live []pool.Block
		for range 400 {
			switch n := random.IntN(20); {
			case n < 10:
				size := 512 * (1 + random.Uint64N(16))
				block, found := b.Serve(size, size, random.Uint64N(2048))
				if found {
					live = append(live, block)
				} else if h, err := b.Grow(512 * (1 + random.Uint64N(16))); err == nil {
					b.Connect(h, always)
					b.Add(h)
				}
			case n < 18 && len(live) > 0:
				i := random.IntN(len(live))
				reclaim(t, &b, live[i].Address)
				live = slices.Delete(live, i, i+1)
			case n == 18:
				source.address = 0
				if random.IntN(2) == 0 && len(b.segments) > 0 {
					source.address = b.segments[random.IntN(len(b.segments))].Address
				}
				before, idle := b.Stats().Reserved, b.Idle()
				err := b.Trim()
				freed := before - b.Stats().Reserved
				if err == nil {
					require.Equal(t, idle, freed)
				} else {
					require.ErrorIs(t, err, errStubborn)
					require.Less(t, freed, idle)
				}
			}
			tiles(t, &b.Table)
			requireListed(t, &b)
			regions := b.Regions()
			for i := 1; i < len(regions); i++ {
				require.Less(t, regions[i-1].Address+uintptr(regions[i-1].Size), regions[i].Address,
					"all that touch are joined")
			}
		}
		source.address = 0
		b.Empty(func(_ uintptr, h Handle) { b.Add(h) })
		require.NoError(t, b.Trim())
		require.Zero(t, source.Held())
		require.Empty(t, b.segments)
	}
}
