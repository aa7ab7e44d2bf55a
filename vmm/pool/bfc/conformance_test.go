package bfc

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
		{"", conformance.Traits{}},
		{"garbage_collection=true", conformance.Traits{}},
		{"allow_growth=false,memory_limit=128GiB,fragmentation_fraction=0.01", conformance.Traits{Largest: 128 << 30}},
	} {
		t.Run(variant.options, func(t *testing.T) {
			variant.traits.Kind, variant.traits.Alignment = "bfc", 256
			conformance.Run(t, func(source pool.Source) (pool.Pool, error) {
				options, err := pool.ParseOptions(variant.options)
				require.NoError(t, err)
				return New(source, options)
			}, variant.traits)
		})
	}
}
