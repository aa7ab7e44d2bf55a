package bfc

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryDump(t *testing.T) {
	p := newPool(t, newSource(6*MiB), "")
	a, b, c := malloc(t, p, 1000), malloc(t, p, 64*KiB), malloc(t, p, 1024)
	far := malloc(t, p, 3*MiB)
	free(t, p, b)

	d := dump(p)
	require.Equal(t, []RegionDump{{base, 2 * MiB}, {base + 2*MiB, 4 * MiB}}, d.Regions)
	require.Equal(t, []ChunkDump{
		{Address: a.Address, Size: 1024, RequestedSize: 1000, Bin: -1, InUse: true},
		{Address: b.Address, Size: 64 * KiB, Bin: 8},
		{Address: c.Address, Size: 1024, RequestedSize: 1024, Bin: -1, InUse: true},
		{Address: c.Address + 1024, Size: 2*MiB - 66*KiB, Bin: 12},
		{Address: far.Address, Size: 4 * MiB, RequestedSize: 3 * MiB, Bin: -1, InUse: true},
	}, d.Chunks)
	require.Len(t, d.Bins, binCount)
	require.Equal(t, BinSummary{2, 2048, 2048, 2, 2, 2024}, d.Bins[2])
	require.Equal(t, BinSummary{8, 0, 64 * KiB, 0, 1, 0}, d.Bins[8])
	require.Equal(t, detail(p), d.Stats)

	text := d.Text(100 * KiB)
	for _, line := range []string{
		"Bin 1.0KiB: 2 chunks, 2 in use; 2.0KiB in chunks, 2.0KiB in use, 2.0KiB requested",
		"Free chunks in bin 64.0KiB, the first for 100.0KiB:",
		fmt.Sprintf("  free %#x of 65536 bytes, after used %#x of 1024 bytes, 1000 requested,"+
			" before used %#x of 1024 bytes, 1024 requested",
			b.Address, a.Address, c.Address),
		fmt.Sprintf("Region at %#x of 2097152 bytes:", uintptr(base)),
		fmt.Sprintf("  free %#x of 2029568 bytes", c.Address+1024),
		fmt.Sprintf("Region at %#x of 4194304 bytes:\n  used %#x of 4194304 bytes, 3145728 requested\nIn use by size:",
			far.Address, far.Address),
		"  2 chunks of 1024 bytes, together 2.0KiB",
		"In use altogether: 4.0MiB",
		"Limit none, reserved 6291456 (at most 6291456), in use 4196352 (at most 4261888), 4 allocations",
	} {
		require.Contains(t, text, line)
	}
}

// The first request that fails for lack of memory is dumped, even one that no state of the pool could serve; nothing
// after it is.
func TestDumpOnFailure(t *testing.T) {
	for options, dumps := range map[string]int{"": 0, ",dump_log_on_failure=true": 1} {
		for _, sizes := range [][]uint64{{2 * MiB, 5 * MiB, 2 * MiB}, {5 * MiB, 2 * MiB, 5 * MiB}} {
			p := newPool(t, newSource(GiB), "memory_limit=4MiB"+options)
			var logged []string
			p.log = func(text string) {
				require.True(t, p.TryLock(), "the lock is not held")
				p.Unlock()
				logged = append(logged, text)
			}
			malloc(t, p, 3*MiB)
			for _, size := range sizes {
				_, err := p.Malloc(size, 0)
				require.Error(t, err)
			}
			require.Len(t, logged, dumps)
			for _, text := range logged {
				require.Contains(t, text, "out of memory for "+human(sizes[0]))
				require.Contains(t, text, "of 4194304 bytes, 3145728 requested\nIn use by size:")
			}
		}
	}
}

func TestMemoryDumpAsJSON(t *testing.T) {
	p := newPool(t, newSource(GiB), "memory_limit=1GiB")
	empty, err := json.Marshal(dump(p))
	require.NoError(t, err)
	require.Contains(t, string(empty), `"chunk":[]`)

	b := malloc(t, p, 1000)
	text, err := json.Marshal(dump(p))
	require.NoError(t, err)
	var got struct {
		Name  string              `json:"allocator_name"`
		Bins  []map[string]uint64 `json:"bin_summary"`
		Chunk []map[string]any    `json:"chunk"`
		Stats map[string]float64  `json:"stats"`
	}
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, "bfc", got.Name)
	require.Equal(t, map[string]uint64{"bin": 2, "total_bytes_in_use": 1024, "total_bytes_in_bin": 1024,
		"total_chunks_in_use": 1, "total_chunks_in_bin": 1, "total_requested_bytes_in_use": 1000}, got.Bins[2])
	require.Equal(t, map[string]any{"address": float64(b.Address), "size": 1024.0, "requested_size": 1000.0,
		"bin": -1.0, "in_use": true}, got.Chunk[0])
	require.EqualValues(t, GiB, got.Stats["bytes_limit"])
	require.Contains(t, got.Stats, "fragmentation_metric")
}

func TestHuman(t *testing.T) {
	for bytes, text := range map[uint64]string{
		0: "0B", 1023: "1023B", 1536: "1.5KiB", 2 * GiB: "2.0GiB", 1 << 62: "4.0EiB",
	} {
		require.Equal(t, text, human(bytes))
	}
}
