package kinds_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/buddy"
)

func (m *made) largestBuddy() uint64 { return m.Stats().Detail.(buddy.Detail).LargestFree }

// buddyModel is a root as the text describes it: sets of free blocks by size.
type buddyModel struct {
	free map[uint64]map[uint64]bool // by size, offsets
}

func (m buddyModel) lowest(size uint64) (offset uint64, found bool) {
	offset = ^uint64(0)
	for at := range m.free[size] {
		offset, found = min(offset, at), true
	}
	return offset, found
}

func (m buddyModel) add(size, offset uint64) {
	if m.free[size] == nil {
		m.free[size] = map[uint64]bool{}
	}
	m.free[size][offset] = true
}

func (m buddyModel) malloc(size, most uint64) (uint64, bool) {
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

func (m buddyModel) release(size, offset, most uint64) {
	for size < most && m.free[size][offset^size] {
		delete(m.free[size], offset^size)
		offset &^= size
		size *= 2
	}
	m.add(size, offset)
}

func TestBuddyAgainstModel(t *testing.T) {
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := newPool(t, "buddy", mib, "capacity=1MiB")
		m := buddyModel{free: map[uint64]map[uint64]bool{}}
		m.add(mib, 0)
		root := p.malloc(mib)
		p.free(root)
		live := map[uint64]uint64{} // size by offset
		for range 3000 {
			if len(live) > 0 && random.IntN(2) == 0 {
				for offset, size := range live {
					require.NoError(t, p.Free(root.Address+uintptr(offset)))
					m.release(size, offset, mib)
					delete(live, offset)
					break
				}
				continue
			}
			size := 1 + random.Uint64N(1<<random.IntN(21))
			rounded := max(1024, uint64(1)<<bits.Len64(size-1))
			offset, found := m.malloc(rounded, mib)
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

func TestBuddyRootCanBeFreed(t *testing.T) {
	p := newPool(t, "buddy", 4*gib, "")
	for range 3 {
		b := p.malloc(4 * gib)
		require.Zero(t, p.largestBuddy())
		p.free(b)
		require.EqualValues(t, 4*gib, p.largestBuddy())
	}
	require.EqualValues(t, 1, p.Stats().SourceMallocs)
	p.refuses(4*gib+1, pool.ErrTooLarge)
}

func TestBuddyCapacitiesThatAreNoPowersOfTwo(t *testing.T) {
	for _, units := range []uint64{1, 2, 3, 5, 7, 8, 13, 1000, 1023, 1025} {
		newPool(t, "buddy", units*kib, "").refuses(1, pool.ErrOutOfMemory) // 4 GiB are not there
		p := newPool(t, "buddy", units*kib, fmt.Sprintf("capacity=%dKiB", units))
		live := p.mallocs(int(units), 1024)
		p.refuses(1, pool.ErrOutOfMemory) // all is in use
		p.free(live...)
		largest := uint64(1024) << (bits.Len64(units) - 1)
		require.Equal(t, largest, p.largestBuddy())
		p.malloc(largest)
		p.refuses(largest+1, pool.ErrTooLarge)
	}
}

func TestBuddyBlocksAboveFourGiB(t *testing.T) {
	p := newPool(t, "buddy", 64*gib, "capacity=32GiB,min_block=1MiB")
	first, second := p.malloc(5*gib), p.malloc(16*gib)
	require.EqualValues(t, 8*gib, first.Size)
	require.Equal(t, first.Address+16*gib, second.Address)
	p.free(first, second)
	require.EqualValues(t, 32*gib, p.largestBuddy())
}

func TestBuddyFurtherRoots(t *testing.T) {
	p := newPool(t, "buddy", 3*mib, "capacity=1MiB")
	blocks := p.mallocs(3, mib)
	p.refuses(1, pool.ErrOutOfMemory)
	p.free(blocks[1])
	small := p.malloc(1024)
	require.Equal(t, blocks[1].Address, small.Address)
	p.free(blocks[0], blocks[2])
	require.EqualValues(t, mib, p.largestBuddy(), "roots do not merge, not even side by side")
	require.EqualValues(t, 2*mib, p.trim(), "all but the one in use")
	require.Equal(t, small.Address+1024, p.malloc(1024).Address)
	require.EqualValues(t, mib, p.Stats().Reserved)
	require.Equal(t, blocks[0].Address, p.malloc(mib).Address)
}

func TestBuddyExactSizes(t *testing.T) {
	p := newPool(t, "buddy", 2*mib, "capacity=2MiB,exact=true")
	first, second, third := p.malloc(66*kib), p.malloc(1), p.malloc(600*kib-1)
	require.EqualValues(t, 66*kib, first.Size)
	require.Equal(t, first.Address+66*kib, second.Address, "the end was given back")
	require.Equal(t, pool.Block{Address: first.Address + mib, Size: 600 * kib}, third)
	require.Equal(t, first.Address+512*kib, p.malloc(512*kib).Address)
	require.Equal(t, first.Address+256*kib, p.malloc(256*kib).Address)
	require.Equal(t, third.Address+768*kib, p.malloc(256*kib).Address)
	p.free(third)
	require.EqualValues(t, 512*kib, p.largestBuddy(), "merged, but for the last quarter")
}
