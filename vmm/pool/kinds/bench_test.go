package kinds_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

func overEndless(tb testing.TB, kind string) pool.Pool {
	p, err := kinds.New(kind, &pool.Endless{}, nil)
	require.NoError(tb, err)
	return p
}

// BenchmarkTraining measures a pair of malloc and free in iterations of a training of 24 layers.
func BenchmarkTraining(b *testing.B) {
	t := NewTraining(24, 1024, 8192, 50304)
	for _, kind := range kinds.Names() {
		b.Run(kind, func(b *testing.B) {
			p := overEndless(b, kind)
			at := make([]uintptr, t.Slots)
			run := func(steps []Step) {
				for _, s := range steps {
					if s.Size == 0 {
						if err := p.Free(at[s.Slot]); err != nil {
							b.Fatal(err)
						}
						continue
					}
					block, err := p.Malloc(s.Size, 0)
					if err != nil {
						b.Fatal(err)
					}
					at[s.Slot] = block.Address
				}
			}
			run(t.Setup)
			run(t.Step)
			b.ReportAllocs()
			for b.Loop() {
				run(t.Step)
			}
			pairs := float64(len(t.Step)) / 2
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/pairs, "ns/pair")
		})
	}
}

// TestMetadata: a pool keeps little in its own memory, compared with what it manages.
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
