package chunks

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// tiles returns the chunks of each segment as the sizes of live and, negative, of free ones, and checks
// that they are linked without gaps.
func tiles(t *testing.T, table *Table) (all [][]int) {
	t.Helper()
	for _, s := range table.Segments() {
		var sizes []int
		at, before := s.Address, None
		for h := range table.In(s) {
			c := table.At(h)
			require.Equal(t, at, c.Address)
			require.Equal(t, before, c.Previous)
			require.Equal(t, !c.Live(), table.IsFree(h))
			at, before = c.End(), h
			if c.Live() {
				sizes = append(sizes, int(c.Size))
			} else {
				sizes = append(sizes, -int(c.Size))
			}
		}
		require.Equal(t, s.Address+uintptr(s.Size), at)
		all = append(all, sizes)
	}
	return all
}

func grow(t *testing.T, table *Table, size uint64) Handle {
	t.Helper()
	h, err := table.Grow(size)
	require.NoError(t, err)
	return h
}

func TestSplitAndJoin(t *testing.T) {
	table := New("test", pool.NewRange(1<<20, 1<<20))
	first := grow(t, table, 4096)
	second := table.Split(first, 1024)
	third := table.Split(second, 1024)
	require.Equal(t, [][]int{{-1024, -1024, -2048}}, tiles(t, table))
	block := table.Take(second, 1000)
	require.Equal(t, pool.Block{Address: 1<<20 + 1024, Size: 1024}, block)
	require.Equal(t, [][]int{{-1024, 1024, -2048}}, tiles(t, table))
	h, err := table.Give(block.Address)
	require.NoError(t, err)
	require.Equal(t, second, h)
	table.Join(second)
	require.Equal(t, [][]int{{-1024, -3072}}, tiles(t, table))
	table.Join(first)
	require.Equal(t, [][]int{{-4096}}, tiles(t, table))
	require.Equal(t, second, table.Split(first, 256), "the handle dropped last is used again")
	require.Equal(t, third, table.Split(second, 256))
}

func TestOnlyLiveChunksCanBeGiven(t *testing.T) {
	table := New("test", pool.NewRange(1<<20, 1<<20))
	h := grow(t, table, 4096)
	for _, address := range []uintptr{0, 1 << 20, 1<<20 + 256} {
		_, err := table.Give(address)
		require.ErrorIs(t, err, pool.ErrInvalidAddress)
	}
	block := table.Take(h, 1)
	_, err := table.Give(block.Address)
	require.NoError(t, err)
	_, err = table.Give(block.Address)
	require.ErrorIs(t, err, pool.ErrInvalidAddress)
	require.EqualValues(t, 1, table.Stats().Frees)
}

func TestSegmentsStayInOrder(t *testing.T) {
	source := pool.NewRange(1<<20, 1<<20)
	table := New("test", source)
	grow(t, table, 1024)
	grow(t, table, 2048)
	_, err := table.GiveBack(func(Handle) {})
	require.NoError(t, err)
	require.Empty(t, table.Segments())
	low := grow(t, table, 512)
	high := grow(t, table, 4096)
	table.Take(low, 1)
	table.Take(high, 1)
	adopted := table.Adopt(1<<19, 256) // below the others
	require.Equal(t, [][]int{{-256}, {512}, {4096}}, tiles(t, table))
	require.Equal(t, adopted, table.Segments()[0].First)
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
	table := New("test", source)
	split := grow(t, table, 1024)
	table.Split(split, 256)
	kept := grow(t, table, 2048)
	source.address = table.At(kept).Address
	live := grow(t, table, 4096)
	table.Take(table.Split(live, 1024), 1)
	require.EqualValues(t, 3072, table.Idle())

	forgotten := 0
	bytes, err := table.GiveBack(func(Handle) { forgotten++ })
	require.ErrorIs(t, err, errStubborn)
	require.EqualValues(t, 1024, bytes)
	require.Equal(t, 2, forgotten)
	require.Equal(t, [][]int{{-2048}, {-1024, 3072}}, tiles(t, table))

	var given []Handle
	table.GiveAll(func(h Handle) {
		given = append(given, h)
		table.Join(live)
	})
	require.Len(t, given, 1)
	require.Equal(t, [][]int{{-2048}, {-4096}}, tiles(t, table))
	source.address = 0
	bytes, err = table.GiveBack(func(Handle) {})
	require.NoError(t, err)
	require.EqualValues(t, 6144, bytes)
	require.Zero(t, source.Held())
	stats := table.Stats()
	require.EqualValues(t, []uint64{3, 3, 1, 0, 0}, []uint64{stats.SourceMallocs, stats.SourceFrees, stats.SourceFailures, stats.Reserved, stats.Live})
}
