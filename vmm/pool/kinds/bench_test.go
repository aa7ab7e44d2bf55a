package kinds_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/pooltest/workload"
	"tms/vmm/pool/kinds"
)

func overEndless(tb testing.TB, kind string) pool.Pool {
	p, err := kinds.New(kind, &pool.Endless{}, nil)
	require.NoError(tb, err)
	return p
}

// BenchmarkTraining measures a pair of malloc and free in a training.
func BenchmarkTraining(b *testing.B) {
	for _, kind := range kinds.Names() {
		b.Run(kind, func(b *testing.B) {
			workload.BenchmarkTraining(b, func(b *testing.B) pool.Pool { return overEndless(b, kind) })
		})
	}
}

// TestMetadata: what a pool keeps in its own memory is little beside what it manages.
func TestMetadata(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	for _, kind := range kinds.Names() {
		p := overEndless(t, kind)
		random := rand.New(rand.NewPCG(1, 2))
		before := heap()
		for range 10_000 {
			_, err := p.Malloc(1<<20+random.Uint64N(2<<20), 0)
			require.NoError(t, err)
		}
		kept := heap() - before
		live := p.Stats().Live
		t.Logf("%s: %d bytes for each of %d blocks, %.3f%%", kind, kept/10_000, 10_000, 100*float64(kept)/float64(live))
		require.Less(t, kept, int64(live/100), kind)
	}
}
