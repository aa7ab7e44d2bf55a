package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

// variant is a kind with options, and how it then differs.
type variant struct {
	options string
	traits  Traits
}

var variants = []variant{
	{"", Traits{Kind: "naive", Alignment: 512, Direct: 1}},
	{"", Traits{Kind: "freelist", Alignment: 512, Largest: 5 << 30}},
	{"buffer=20481KiB", Traits{Kind: "freelist", Alignment: 512, Largest: 20481 << 10}},
	{"", Traits{Kind: "buddy", Alignment: 512, Largest: 4 << 30}},
	{"capacity=25173504,min_block=512", Traits{Kind: "buddy", Alignment: 512, Largest: 16 << 20}},
	{"capacity=1GiB,exact=yes", Traits{Kind: "buddy", Alignment: 512, Largest: 1 << 30}},
	{"", Traits{Kind: "slab", Alignment: 256}},
	{"capacity=32MiB,max=100KiB,page=4KiB,keep=0", Traits{Kind: "slab", Alignment: 256, Direct: 32<<20 + 1}},
	{"pages=source,keep=2", Traits{Kind: "slab", Alignment: 256, Direct: 1<<20 + 1}},
	{"", Traits{Kind: "caching", Alignment: 512, StreamOrdered: true}},
	{"max_split_size=40MiB,roundup_power2_divisions=8,total=128GiB,memory_fraction=0.9," +
		"garbage_collection_threshold=0.5",
		Traits{Kind: "caching", Alignment: 512, StreamOrdered: true}},
	{"", Traits{Kind: "bfc", Alignment: 256}},
	{"garbage_collection=true,memory_limit=128GiB,fragmentation_fraction=0.01",
		Traits{Kind: "bfc", Alignment: 256, Largest: 128 << 30}},
	{"", Traits{Kind: "paddle", Alignment: 256, Direct: 1<<30 - 63}},
	{"min_chunk=4KiB,max_chunk=16MiB,descriptor=0", Traits{Kind: "paddle", Alignment: 256, Direct: 16<<20 + 1}},
	{"initial=8GiB,reallocate=64MiB", Traits{Kind: "paddle", Alignment: 256, Direct: 8<<30 - 63}},
	{"allow_growth=false,memory_limit=128GiB", Traits{Kind: "bfc", Alignment: 256, Largest: 128 << 30}},
	{"memory_fraction=1,total=1TiB,garbage_collection_threshold=0.001",
		Traits{Kind: "caching", Alignment: 512, StreamOrdered: true}},
}

func (v variant) make(source pool.Source) (pool.Pool, error) {
	return construct(v.traits.Kind, source, v.options)
}

func (v variant) String() string { return v.traits.Kind + "," + v.options }

func TestEveryKindConforms(t *testing.T) {
	tested := map[string]bool{}
	for _, v := range variants {
		tested[v.traits.Kind] = true
		t.Run(v.String(), func(t *testing.T) { conforms(t, v.make, v.traits) })
	}
	for _, name := range kinds.Names() {
		require.True(t, tested[name], "no variant of %s", name)
	}
}
