package bfc

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/pooltest"
)

func counter() func() uint64 {
	var count uint64
	return func() uint64 { count++; return count }
}

func newTimedPool(t *testing.T, limit string) *Pool {
	p := newPool(t, pooltest.NewSource(GiB), "allow_growth=false,memory_limit="+limit)
	p.SetTimingCounter(counter())
	return p
}

func TestStampedChunksWaitForTheFrontier(t *testing.T) {
	p := newTimedPool(t, "1MiB")
	a, b := pooltest.Malloc(t, p, 4*KiB), pooltest.Malloc(t, p, 4*KiB)
	rest := pooltest.Malloc(t, p, MiB-8*KiB)
	pooltest.Free(t, p, a, b) // at 1 and 2
	check(t, p)
	require.EqualValues(t, 4*KiB, detail(p).LargestFreeBlockBytes, "not joined")

	_, err := p.MallocFreedBefore(8*KiB, 2)
	require.ErrorIs(t, err, pool.ErrOutOfMemory, "freed in time, but in two parts")

	p.SetSafeFrontier(2)
	check(t, p)
	require.EqualValues(t, 4*KiB, detail(p).LargestFreeBlockBytes, "only the first is safe")
	p.SetSafeFrontier(1)
	p.SetSafeFrontier(3)
	require.EqualValues(t, 8*KiB, detail(p).LargestFreeBlockBytes, "joined")
	whole, err := p.MallocFreedBefore(8*KiB, 1)
	require.NoError(t, err)
	require.Equal(t, a.Address, whole.Address)
	pooltest.Free(t, p, whole, rest)
}

func TestFreedBefore(t *testing.T) {
	p := newTimedPool(t, "12KiB")
	a, b, c := pooltest.Malloc(t, p, 4*KiB), pooltest.Malloc(t, p, 4*KiB), pooltest.Malloc(t, p, 4*KiB)
	pooltest.Free(t, p, c, b, a) // at 1, 2 and 3
	got, err := p.MallocFreedBefore(4*KiB, 2)
	require.NoError(t, err)
	require.Equal(t, b.Address, got.Address, "the lowest that was freed by 2")
	got, err = p.MallocFreedBefore(4*KiB, 2)
	require.NoError(t, err)
	require.Equal(t, c.Address, got.Address)
	_, err = p.MallocFreedBefore(4*KiB, 2)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.Equal(t, a.Address, pooltest.Malloc(t, p, 4*KiB).Address, "a malloc without a wish takes any")
}

func TestTheRestKeepsTheStamp(t *testing.T) {
	p := newTimedPool(t, "16KiB")
	pooltest.Free(t, p, pooltest.Malloc(t, p, 16*KiB)) // at 1
	b := pooltest.Malloc(t, p, 4*KiB)
	_, err := p.MallocFreedBefore(4*KiB, 0)
	require.NoError(t, err)
	check(t, p)
	p.SetSafeFrontier(1)
	_, err = p.MallocFreedBefore(4*KiB, 1)
	require.NoError(t, err, "freed at 1")
	p.SetTimingCounter(nil)
	pooltest.Free(t, p, b)
	check(t, p)
	p.SetSafeFrontier(2)
	check(t, p)
}

func TestUnsafeChunksAreJoinedInNeed(t *testing.T) {
	p := newTimedPool(t, "16KiB")
	var blocks []pool.Block
	for range 4 {
		blocks = append(blocks, pooltest.Malloc(t, p, 4*KiB))
	}
	pooltest.Free(t, p, blocks[2], blocks[0], blocks[1]) // at 1, 2 and 3
	_, err := p.MallocFreedBefore(12*KiB, 3)
	require.ErrorIs(t, err, pool.ErrOutOfMemory, "joining would lose when each was freed")
	check(t, p)
	b := pooltest.Malloc(t, p, 12*KiB)
	require.Equal(t, blocks[0].Address, b.Address)

	pooltest.Free(t, p, b) // at 4
	_, err = p.MallocFreedBefore(12*KiB, 3)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	p.SetSafeFrontier(5)
	check(t, p)

	t.Run("no more than needed", func(t *testing.T) {
		p := newTimedPool(t, "20KiB")
		var blocks []pool.Block
		for range 5 {
			blocks = append(blocks, pooltest.Malloc(t, p, 4*KiB))
		}
		pooltest.Free(t, p, blocks[0], blocks[1], blocks[3], blocks[4])
		require.Equal(t, blocks[0].Address, pooltest.Malloc(t, p, 8*KiB).Address)
		check(t, p)
		require.Equal(t, 2, p.stamped.Len(), "the others are as they were")
	})

	t.Run("joined chunks are as late as their latest part", func(t *testing.T) {
		p := newTimedPool(t, "12KiB")
		a, b, c := pooltest.Malloc(t, p, 4*KiB), pooltest.Malloc(t, p, 4*KiB), pooltest.Malloc(t, p, 4*KiB)
		pooltest.Free(t, p, a, b) // at 1 and 2
		_, err := p.Malloc(12*KiB, 0)
		require.ErrorIs(t, err, pool.ErrOutOfMemory, "but what is there was joined")
		_, err = p.MallocFreedBefore(4*KiB, 1)
		require.ErrorIs(t, err, pool.ErrOutOfMemory)
		_, err = p.MallocFreedBefore(8*KiB, 2)
		require.NoError(t, err)
		pooltest.Free(t, p, c)
	})
}

func TestAFreeBehindTheFrontierIsSafe(t *testing.T) {
	p := newTimedPool(t, "1MiB")
	p.SetSafeFrontier(2)
	p.SetSafeFrontier(1) // which it never goes back to
	pooltest.Free(t, p, pooltest.Malloc(t, p, 4*KiB))
	require.EqualValues(t, MiB, detail(p).LargestFreeBlockBytes)
	pooltest.Free(t, p, pooltest.Malloc(t, p, 4*KiB)) // at 2, the frontier itself
	require.EqualValues(t, MiB-4*KiB, detail(p).LargestFreeBlockBytes)
}

func TestACounterThatStands(t *testing.T) {
	p := newPool(t, pooltest.NewSource(GiB), "allow_growth=false,memory_limit=16KiB")
	p.SetTimingCounter(func() uint64 { return 7 })
	blocks := []pool.Block{
		pooltest.Malloc(t, p, 4*KiB), pooltest.Malloc(t, p, 4*KiB), pooltest.Malloc(t, p, 8*KiB),
	}
	pooltest.Free(t, p, blocks[1], blocks[0], blocks[2]) // as if at 7, 8 and 9
	check(t, p)
	p.SetSafeFrontier(9)
	check(t, p)
	require.Equal(t, 1, p.stamped.Len())
	p.SetSafeFrontier(10)
	require.EqualValues(t, 16*KiB, detail(p).LargestFreeBlockBytes)
}

func TestRandomWithTimestamps(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	p := newPool(t, pooltest.NewSource(64*MiB), "")
	var count, frontier uint64
	p.SetTimingCounter(func() uint64 { count++; return count })
	freedAt := map[uintptr]uint64{} // by address of each 256 bytes
	var live []pool.Block
	for step := range 10_000 {
		switch n := random.IntN(100); {
		case n < 50:
			before := uint64(0)
			if random.IntN(2) == 0 {
				before = max(frontier, 1)
			}
			b, err := p.MallocFreedBefore(1+random.Uint64N(1<<random.IntN(22)), before)
			if err != nil {
				require.ErrorIs(t, err, pool.ErrOutOfMemory)
				continue
			}
			for at := b.Address; at < b.Address+uintptr(b.Size); at += 256 {
				if before > 0 && freedAt[at] > before {
					t.Fatalf("step %d: %#x was freed at %d, after %d", step, at, freedAt[at], before)
				}
				delete(freedAt, at)
			}
			live = append(live, b)
		case n < 95 && len(live) > 0:
			i := random.IntN(len(live))
			b := live[i]
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			pooltest.Free(t, p, b)
			for at := b.Address; at < b.Address+uintptr(b.Size); at += 256 {
				freedAt[at] = count
			}
		case n < 99:
			frontier = frontier + random.Uint64N(count-frontier+1)
			p.SetSafeFrontier(frontier)
			for at, stamp := range freedAt {
				if stamp < frontier {
					delete(freedAt, at)
				}
			}
		default:
			freed, err := p.Trim()
			require.NoError(t, err)
			if freed > 0 {
				clear(freedAt) // what the source frees, it has waited for
			}
		}
		if step%100 == 0 {
			check(t, p)
		}
	}
}
