package workload

import (
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
