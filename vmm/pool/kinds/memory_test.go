package kinds_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

// A pool keeps little in its own memory, compared with what it manages, also when half of that is free.
func TestMetadata(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	for _, kind := range kinds.Names() {
		p := over(t, kind, &pool.Endless{}, "")
		random := rand.New(rand.NewPCG(1, 2))
		blocks := make([]pool.Block, 10_000)
		before := heap()
		for i := range blocks {
			blocks[i] = p.malloc(1 + random.Uint64N(4*mib))
		}
		require.Less(t, heap()-before, int64(p.Stats().Live/100), kind)
		for i := 0; i < len(blocks); i += 2 {
			p.free(blocks[i])
		}
		require.Less(t, heap()-before, int64(p.Stats().PeakLive/100), kind)
		runtime.KeepAlive(blocks)
	}
}

func TestSteadyStateMakesLittleGarbage(t *testing.T) {
	for _, kind := range []string{"bfc", "paddle"} {
		p := newPool(t, kind, 4*gib, "").Pool
		blocks := make([]pool.Block, 1000)
		random := rand.New(rand.NewPCG(1, 2))
		churn := func() {
			for range 10_000 {
				i := random.IntN(len(blocks))
				_ = p.Free(blocks[i].Address)
				blocks[i], _ = p.Malloc(1+random.Uint64N(64*kib), 0)
			}
		}
		churn()
		// Sizes that were never free before make some.
		require.LessOrEqual(t, testing.AllocsPerRun(5, churn), 10.0, kind)
	}
}
