package caching

import (
	"testing"

	"tms/vmm/pool"
	"tms/vmm/pool/conformance"
)

func TestConforms(t *testing.T) {
	for _, options := range []string{
		"",
		"max_split_size=64MiB",
		"roundup_power2_divisions=4",
		"memory_fraction=1,total=1TiB,garbage_collection_threshold=0.001",
	} {
		t.Run(options, func(t *testing.T) {
			conformance.Run(t, func(source pool.Source) (pool.Pool, error) {
				return newPool(t, source, options), nil
			}, conformance.Traits{Kind: "caching", Alignment: minBlock, StreamOrdered: true})
		})
	}
}
