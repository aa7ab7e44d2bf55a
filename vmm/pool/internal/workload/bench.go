package workload

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tms/vmm/pool"
)

// BenchmarkTraining measures a pair of malloc and free in iterations of a training of 24 layers.
func BenchmarkTraining(b *testing.B, fresh func(*testing.B) pool.Pool) {
	t := NewTraining(24, 1024, 8192, 50304)
	p := fresh(b)
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
}

// BenchmarkLive measures a pair of malloc and free among 10^3 to 10^6 live blocks of random sizes: of
// the thousand blocks made last, as programs mostly do, and of any, where each step of the pool and of
// the benchmark itself misses the processor's caches once they are too small.
func BenchmarkLive(b *testing.B, fresh func(*testing.B) pool.Pool) {
	for _, pattern := range []struct {
		name   string
		window func(live int) int
	}{
		{"recent", func(int) int { return 1000 }},
		{"any", func(live int) int { return live }},
	} {
		for live := 1000; live <= 1_000_000; live *= 10 {
			b.Run(fmt.Sprintf("%s/%d", pattern.name, live), func(b *testing.B) {
				benchmarkLive(b, fresh(b), live, pattern.window(live))
			})
		}
	}
}

func benchmarkLive(b *testing.B, p pool.Pool, live, window int) {
	random := rand.New(rand.NewPCG(1, 2))
	sizes := Sizes(1<<12, 512, 4<<20, 1)
	blocks := make([]uintptr, live)
	replace := func(i int) {
		if err := p.Free(blocks[i]); err != nil {
			b.Fatal(err)
		}
		block, err := p.Malloc(sizes[random.IntN(len(sizes))], 0)
		if err != nil {
			b.Fatal(err)
		}
		blocks[i] = block.Address
	}
	for i := range blocks {
		replace(i)
	}
	for range live { // so that there are holes everywhere
		replace(random.IntN(live))
	}
	for range 10 * window {
		replace(live - window + random.IntN(window))
	}
	b.ReportAllocs()
	for b.Loop() {
		replace(live - window + random.IntN(window))
	}
}
