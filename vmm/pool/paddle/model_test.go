package paddle

import (
	"testing"

	"tms/vmm/pool/internal/pooltest"
)

func TestAgainstModel(t *testing.T) {
	rules := pooltest.Rules{
		Round: func(size uint64) uint64 { return (size + 64 + 255) / 256 * 256 },
		Grow:  func(uint64) uint64 { return 8 * MiB },
		Split: func(chunk, rounded uint64) bool { return chunk > rounded },
	}
	for seed := range uint64(4) {
		pooltest.Follow(t, seed, newPool(t, pooltest.NewSource(1<<44), "max_chunk=8MiB"), rules, 22)
	}
}
