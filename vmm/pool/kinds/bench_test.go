package kinds_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/workload"
	"tms/vmm/pool/kinds"
)

// endless is a source that costs nothing and has no end.
type endless struct{ next uintptr }

func (e *endless) Allocate(size uint64) (uintptr, error) {
	address := e.next
	e.next += uintptr(size+511) &^ 511
	return address, nil
}

func (*endless) Free(uintptr, uint64) error { return nil }

func overEndless(tb testing.TB, kind string) pool.Pool {
	p, err := kinds.New(kind, &endless{next: 1 << 40}, nil)
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

// BenchmarkLive measures a pair of free and malloc among many live blocks of 1 KiB to 1 MiB. The pairs go
// to 256 of them, so that the figures show what grows in the pool, and to all, where they
// show what the processor's caches miss too.
func BenchmarkLive(b *testing.B) {
	for _, kind := range kinds.Names() {
		for _, among := range []int{256, 1e6} {
			for live := 1000; live <= 1e6; live *= 10 {
				b.Run(fmt.Sprintf("%s/live=%d/among=%d", kind, live, min(live, among)), func(b *testing.B) {
					benchmarkLive(b, overEndless(b, kind), live, min(live, among))
				})
			}
		}
	}
}

func benchmarkLive(b *testing.B, p pool.Pool, live, among int) {
	random := rand.New(rand.NewPCG(1, 2))
	addresses := make([]uintptr, live)
	malloc := func(i int) {
		block, err := p.Malloc(1<<10+random.Uint64N(1<<(10+random.IntN(11))), 0)
		if err != nil {
			b.Fatal(err)
		}
		addresses[i] = block.Address
	}
	for i := range addresses {
		malloc(i)
	}
	pair := func() {
		i := random.IntN(among)
		if err := p.Free(addresses[i]); err != nil {
			b.Fatal(err)
		}
		malloc(i)
	}
	for range 2 * among { // so that what is measured is steady
		pair()
	}
	b.ReportAllocs()
	for b.Loop() {
		pair()
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
