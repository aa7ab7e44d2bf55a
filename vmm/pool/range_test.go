package pool_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

const origin = 0x10_0000

func allocate(t *testing.T, r *pool.Range, size uint64) uintptr {
	t.Helper()
	address, err := r.Allocate(size)
	require.NoError(t, err)
	return address
}

func TestRangePlacesFirstFit(t *testing.T) {
	r := pool.NewRange(origin, 1<<20)
	first := allocate(t, r, 1000)
	second := allocate(t, r, 1)
	third := allocate(t, r, 512)
	require.Equal(t, []uintptr{origin, origin + 1024, origin + 1536}, []uintptr{first, second, third})
	require.Equal(t, 3, r.Held())
	require.NoError(t, r.Free(first, 1000))
	require.Equal(t, uintptr(origin), allocate(t, r, 512), "the lowest hole that is large enough")
	require.Equal(t, uintptr(origin+2048), allocate(t, r, 513), "too large for the rest of it")
}

func TestRangeRefuses(t *testing.T) {
	r := pool.NewRange(origin, 4096)
	for _, size := range []uint64{0, 4097, 1 << 40, ^uint64(0), ^uint64(0) - 510} {
		_, err := r.Allocate(size)
		require.ErrorIs(t, err, pool.ErrOutOfMemory, "%d bytes", size)
	}
	address := allocate(t, r, 4096)
	_, err := r.Allocate(1)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	for _, wrong := range []struct {
		address uintptr
		size    uint64
	}{{address + 512, 3584}, {address, 512}, {address, 0}, {0, 0}, {0, 512}, {address, ^uint64(0)}} {
		require.ErrorIs(t, r.Free(wrong.address, wrong.size), pool.ErrInvalidAddress, "%+v", wrong)
	}
	require.NoError(t, r.Free(address, 4096))
	require.ErrorIs(t, r.Free(address, 4096), pool.ErrInvalidAddress)
	require.Zero(t, r.Held())
}

func TestRangeAgainstModel(t *testing.T) {
	const units = 256
	type segment struct {
		address uintptr
		size    uint64
	}
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := pool.NewRange(origin, units*512)
		var used [units]bool
		var live []segment
		mark := func(s segment, to bool) {
			for u := uint64(s.address-origin) / 512; u < uint64(s.address-origin)/512+(s.size+511)/512; u++ {
				require.NotEqual(t, to, used[u])
				used[u] = to
			}
		}
		firstFit := func(size uint64) (unit int) {
			run := 0
			for u := range units {
				if run++; used[u] {
					run = 0
				}
				if run == int(size+511)/512 {
					return u + 1 - run
				}
			}
			return -1
		}
		for range 2000 {
			if len(live) > 0 && random.IntN(2) == 0 {
				i := random.IntN(len(live))
				require.NoError(t, r.Free(live[i].address, live[i].size))
				mark(live[i], false)
				live = append(live[:i], live[i+1:]...)
				continue
			}
			size := 1 + random.Uint64N(1<<(8+random.IntN(8)))
			address, err := r.Allocate(size)
			unit := firstFit(size)
			if unit < 0 {
				require.ErrorIs(t, err, pool.ErrOutOfMemory)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, uintptr(origin+512*unit), address)
			live = append(live, segment{address, size})
			mark(live[len(live)-1], true)
		}
		for _, s := range live {
			require.NoError(t, r.Free(s.address, s.size))
		}
		require.Equal(t, uintptr(origin), allocate(t, r, units*512), "all came back as one")
	}
}
