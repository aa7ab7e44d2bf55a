package paddle

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/conformance"
)

func TestConforms(t *testing.T) {
	for _, variant := range []struct {
		options string
		traits  conformance.Traits
	}{
		{"", conformance.Traits{Direct: 1<<30 - 63}},
		{"min_chunk=4KiB,max_chunk=16MiB,descriptor=0", conformance.Traits{Direct: 16<<20 + 1}},
		{"initial=8GiB,reallocate=64MiB", conformance.Traits{Direct: 8<<30 - 63}},
	} {
		t.Run(variant.options, func(t *testing.T) {
			variant.traits.Kind, variant.traits.Alignment = "paddle", 256
			conformance.Run(t, func(source pool.Source) (pool.Pool, error) {
				options, err := pool.ParseOptions(variant.options)
				require.NoError(t, err)
				return New(source, options)
			}, variant.traits)
		})
	}
}
