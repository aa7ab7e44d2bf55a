package bfc

import (
	"testing"

	"tms/vmm/pool/internal/pooltest"
)

func TestAgainstModel(t *testing.T) {
	for seed := range uint64(4) {
		region := uint64(2 * MiB)
		rules := pooltest.Rules{
			Round: func(size uint64) uint64 { return (size + 255) / 256 * 256 },
			Grow: func(rounded uint64) uint64 {
				if region >= rounded {
					region *= 2
					return region / 2
				}
				for region < rounded {
					region *= 2
				}
				return region
			},
			Split: func(chunk, rounded uint64) bool { return chunk >= 2*rounded || chunk-rounded >= 128*MiB },
		}
		pooltest.Follow(t, seed, newPool(t, pooltest.NewSource(1<<44), ""), rules, 29)
	}
}
