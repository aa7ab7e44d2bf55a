package caching

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// BenchmarkVarying is a training whose batches differ, so that blocks are split and merged all the time.
func BenchmarkVarying(b *testing.B) {
	start, steady := training(48, 8)
	p, err := New(pool.NewRange(1<<40, 1<<46), nil)
	require.NoError(b, err)
	r := &player{pool: p}
	require.NoError(b, r.play(start))
	require.NoError(b, r.play(steady))
	b.ReportAllocs()
	for b.Loop() {
		if err := r.play(steady); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(steady)/2), "ns/pair")
}
