package buddy_test

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/buddy"
)

// base is where segments begin: aligned to 512 bytes, and no more.
const base = 0x7f00_0000_0200

func newPool(t *testing.T, capacity uint64, text string) *buddy.Pool {
	t.Helper()
	options, err := pool.ParseOptions(text)
	require.NoError(t, err)
	p, err := buddy.New(pool.NewRange(base, capacity), options)
	require.NoError(t, err)
	return p
}

func malloc(t *testing.T, p *buddy.Pool, size uint64) pool.Block {
	t.Helper()
	b, err := p.Malloc(size, 0)
	require.NoError(t, err)
	return b
}

func largestFree(p *buddy.Pool) uint64 { return p.Stats().Detail.(buddy.Detail).LargestFree }

func TestSizesArePowersOfTwo(t *testing.T) {
	p := newPool(t, 1<<40, "")
	for size, want := range map[uint64]uint64{
		1: 1 << 10, 1024: 1 << 10, 1025: 2 << 10, 66 << 10: 128 << 10, 3 << 30: 4 << 30, 4 << 30: 4 << 30,
	} {
		require.Equal(t, want, malloc(t, p, size).Size)
	}
	_, err := p.Malloc(4<<30+1, 0)
	require.ErrorIs(t, err, pool.ErrTooLarge)
}

// model is a root as the text describes it: sets of free blocks by size.
type model struct {
	free map[uint64]map[uint64]bool // by size, offsets
}

func (m model) lowest(size uint64) (offset uint64, found bool) {
	offset = ^uint64(0)
	for at := range m.free[size] {
		offset, found = min(offset, at), true
	}
	return offset, found
}

func (m model) add(size, offset uint64) {
	if m.free[size] == nil {
		m.free[size] = map[uint64]bool{}
	}
	m.free[size][offset] = true
}

func (m model) malloc(size, most uint64) (uint64, bool) {
	for from := size; from <= most; from *= 2 {
		offset, found := m.lowest(from)
		if !found {
			continue
		}
		delete(m.free[from], offset)
		for from > size {
			from /= 2
			m.add(from, offset+from)
		}
		return offset, true
	}
	return 0, false
}

func (m model) release(size, offset, most uint64) {
	for size < most && m.free[size][offset^size] {
		delete(m.free[size], offset^size)
		offset &^= size
		size *= 2
	}
	m.add(size, offset)
}

func TestAgainstModel(t *testing.T) {
	const capacity = 1 << 20
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := newPool(t, capacity, "capacity=1MiB")
		m := model{free: map[uint64]map[uint64]bool{}}
		m.add(capacity, 0)
		base := malloc(t, p, capacity).Address
		require.NoError(t, p.Free(base))
		live := map[uint64]uint64{} // size by offset
		for range 3000 {
			if len(live) > 0 && random.IntN(2) == 0 {
				for offset, size := range live {
					require.NoError(t, p.Free(base+uintptr(offset)))
					m.release(size, offset, capacity)
					delete(live, offset)
					break
				}
				continue
			}
			size := 1 + random.Uint64N(1<<random.IntN(21))
			rounded := max(1024, uint64(1)<<bits.Len64(size-1))
			offset, found := m.malloc(rounded, capacity)
			b, err := p.Malloc(size, 0)
			if !found {
				require.ErrorIs(t, err, pool.ErrOutOfMemory)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, pool.Block{Address: base + uintptr(offset), Size: rounded}, b)
			live[offset] = rounded
		}
	}
}

func TestTheRootCanBeFreed(t *testing.T) {
	p := newPool(t, 4<<30, "")
	for range 3 {
		b := malloc(t, p, 4<<30)
		require.Zero(t, largestFree(p))
		require.NoError(t, p.Free(b.Address))
		require.Equal(t, uint64(4<<30), largestFree(p))
	}
	require.Equal(t, uint64(1), p.Stats().SourceMallocs)
}

func TestCapacitiesThatAreNoPowersOfTwo(t *testing.T) {
	for _, units := range []uint64{1, 2, 3, 5, 7, 8, 13, 1000, 1023, 1025} {
		p := newPool(t, units<<10, "")
		_, err := p.Malloc(1, 0)
		require.ErrorIs(t, err, pool.ErrOutOfMemory, "4 GiB are not there")

		options, err := pool.ParseOptions("capacity=" + kib(units))
		require.NoError(t, err)
		source := pool.NewRange(base, units<<10)
		p, err = buddy.New(source, options)
		require.NoError(t, err)
		var live []uintptr
		for range units {
			live = append(live, malloc(t, p, 1024).Address)
		}
		_, err = p.Malloc(1, 0)
		require.ErrorIs(t, err, pool.ErrOutOfMemory, "all %d KiB were served", units)
		for _, address := range live {
			require.NoError(t, p.Free(address))
		}
		largest := uint64(1024) << (bits.Len64(units) - 1)
		require.Equal(t, largest, largestFree(p))
		malloc(t, p, largest)
		_, err = p.Malloc(largest+1, 0)
		require.ErrorIs(t, err, pool.ErrTooLarge)
	}
}

func kib(n uint64) string {
	digits := []byte("KiB")
	for ; n > 0; n /= 10 {
		digits = append([]byte{byte('0' + n%10)}, digits...)
	}
	return string(digits)
}

func TestBlocksAboveFourGiB(t *testing.T) {
	p := newPool(t, 64<<30, "capacity=32GiB,min_block=1MiB")
	first, second := malloc(t, p, 5<<30), malloc(t, p, 16<<30)
	require.Equal(t, uint64(8<<30), first.Size)
	require.Equal(t, first.Address+16<<30, second.Address)
	require.NoError(t, p.Free(first.Address))
	require.NoError(t, p.Free(second.Address))
	require.Equal(t, uint64(32<<30), largestFree(p))
}

func TestFurtherRoots(t *testing.T) {
	p := newPool(t, 3<<20, "capacity=1MiB")
	var blocks []pool.Block
	for range 3 {
		blocks = append(blocks, malloc(t, p, 1<<20))
	}
	_, err := p.Malloc(1, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.NoError(t, p.Free(blocks[1].Address))
	small := malloc(t, p, 1024)
	require.Equal(t, blocks[1].Address, small.Address)
	require.NoError(t, p.Free(blocks[0].Address))
	require.NoError(t, p.Free(blocks[2].Address))
	require.Equal(t, uint64(1<<20), largestFree(p), "roots do not merge, not even side by side")
	freed, err := p.Trim()
	require.NoError(t, err)
	require.Equal(t, uint64(2<<20), freed, "all but the one in use")
	require.Equal(t, small.Address+1024, malloc(t, p, 1024).Address)
	require.Equal(t, uint64(1<<20), p.Stats().Reserved)
	require.Equal(t, blocks[0].Address, malloc(t, p, 1<<20).Address)
}

func TestExactSizes(t *testing.T) {
	p := newPool(t, 2<<20, "capacity=2MiB,exact=true")
	first, second, third := malloc(t, p, 66<<10), malloc(t, p, 1), malloc(t, p, 600<<10-1)
	require.Equal(t, uint64(66<<10), first.Size)
	require.Equal(t, first.Address+66<<10, second.Address, "the end was given back")
	require.Equal(t, pool.Block{Address: first.Address + 1<<20, Size: 600 << 10}, third)
	require.Equal(t, first.Address+512<<10, malloc(t, p, 512<<10).Address)
	require.Equal(t, first.Address+256<<10, malloc(t, p, 256<<10).Address)
	require.Equal(t, third.Address+768<<10, malloc(t, p, 256<<10).Address)
	require.NoError(t, p.Free(third.Address))
	require.Equal(t, uint64(512<<10), largestFree(p), "merged, but for the last quarter")
}

func TestOptions(t *testing.T) {
	for _, text := range []string{
		"capacity=0", "capacity=1025", "capacity=512", "min_block=0", "min_block=256", "min_block=1536",
		"min_block=8GiB", "capacity=16777215TiB", "exact=perhaps", "roots=2",
	} {
		options, err := pool.ParseOptions(text)
		require.NoError(t, err)
		_, err = buddy.New(pool.NewRange(base, 1<<30), options)
		require.ErrorIs(t, err, pool.ErrOption, text)
	}
}
