package paddle

import (
	"testing"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/workload"
)

func newBenchPool(b *testing.B) pool.Pool {
	p, err := New(pool.NewRange(1<<40, 1<<46), nil)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func BenchmarkTraining(b *testing.B) { workload.BenchmarkTraining(b, newBenchPool) }

func BenchmarkLive(b *testing.B) { workload.BenchmarkLive(b, newBenchPool) }
