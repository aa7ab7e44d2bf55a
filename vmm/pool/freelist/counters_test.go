package freelist

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// TestCounters: the counters agree with what going through everything finds.
func TestCounters(t *testing.T) {
	options, err := pool.ParseOptions("buffer=64KiB")
	require.NoError(t, err)
	made, err := New(pool.NewRange(1<<20, 1<<20), options)
	require.NoError(t, err)
	p := made.(*Pool)
	random := rand.New(rand.NewPCG(1, 2))
	var live []uintptr
	for range 5000 {
		switch n := random.IntN(100); {
		case n < 52:
			if b, err := p.Malloc(1+random.Uint64N(40<<10), 0); err == nil {
				live = append(live, b.Address)
			}
		case n < 98 && len(live) > 0:
			i := random.IntN(len(live))
			require.NoError(t, p.Free(live[i]))
			live = append(live[:i], live[i+1:]...)
		case n == 99:
			_, err := p.Trim()
			require.NoError(t, err)
		}
		var lost, listed uint64
		for i, b := range p.buffers {
			if b.base == 0 {
				continue
			}
			if i != p.current {
				lost += p.capacity - b.used
			}
		}
		for size, l := range p.lists {
			listed += size * uint64(len(*l))
		}
		require.Equal(t, Detail{Listed: listed, Lost: lost}, p.Stats().Detail)
		require.LessOrEqual(t, len(p.buffers), 16, "numbers are used again")
	}
}
