package caching

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

func TestStatsAsJSON(t *testing.T) {
	b := newBench(t, gib, "")
	b.malloc(700, 0)
	text, err := json.Marshal(b.Stats())
	require.NoError(t, err)
	var s struct {
		Kind   string
		Live   uint64 `json:"live_bytes"`
		Detail map[string]any
	}
	require.NoError(t, json.Unmarshal(text, &s))
	require.Equal(t, "caching", s.Kind)
	require.Equal(t, uint64(1024), s.Live)
	require.Equal(t, map[string]any{
		"all":        map[string]any{"current": 700., "peak": 700., "allocated": 700., "freed": 0.},
		"small_pool": map[string]any{"current": 700., "peak": 700., "allocated": 700., "freed": 0.},
		"large_pool": map[string]any{"current": 0., "peak": 0., "allocated": 0., "freed": 0.},
	}, s.Detail["requested_bytes"])
	require.Equal(t, -1., s.Detail["max_split_size"])
}

func TestSnapshot(t *testing.T) {
	b := newBench(t, gib, "memory_fraction=1,garbage_collection_threshold=0.9,device=2")
	large, small := b.malloc(15*mib, 0), b.malloc(700, 3)
	b.free(large)
	b.malloc(12*mib, 0)
	require.Equal(t, []pool.Segment{
		{Address: large, Size: 16 * mib, Allocated: 12 * mib, Active: 12 * mib, Requested: 12 * mib, Type: "large",
			Blocks: []pool.SegmentBlock{
				{Address: large, Size: 12 * mib, Requested: 12 * mib, State: pool.Allocated},
				{Address: large + 12*mib, Size: 4 * mib, State: pool.Inactive},
			}},
		{Address: small, Size: 2 * mib, Allocated: 1024, Active: 1024, Requested: 700, Stream: 3, Type: "small",
			Blocks: []pool.SegmentBlock{
				{Address: small, Size: 1024, Requested: 700, State: pool.Allocated},
				{Address: small + 1024, Size: 2*mib - 1024, State: pool.Inactive},
			}},
	}, b.Snapshot())
	b.malloc(10*mib, 0)
	require.Equal(t, uint64(1), b.age(large+12*mib), "one search since")
}
