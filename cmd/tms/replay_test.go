package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool/kinds"
)

const training = "../../internal/report/replay/testdata/training.csv.gz"

func replayed(t *testing.T, arguments ...string) string {
	t.Helper()
	stdout, stderr, code := execute(t, nil, append([]string{"replay"}, arguments...))
	require.Empty(t, stderr)
	require.Zero(t, code)
	return stdout
}

func objects(t *testing.T, text string) (list []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		list = append(list, parsed[map[string]any](t, line))
	}
	return list
}

// traced makes a trace of these actions: what, pointer, size and stream.
func traced(t *testing.T, actions ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.csv")
	text := "Thread,Time,Action,Pointer,Size,Stream\n1,t," + strings.Join(actions, "\n1,t,") + "\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestReplayTable(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimSpace(replayed(t, "--pool", "all", training)), "\n")
	require.Equal(t, training, lines[0])
	require.Regexp(t, `^pool +operations +ns/op +again +peak live +peak reserved +reserved/live +internal +external`+
		` +source calls +failures$`, lines[1])
	require.Len(t, lines, 2+len(kinds.Names()))
	for i, kind := range kinds.Names() {
		require.Regexp(t, `^`+kind+` +\d+ .* 0$`, lines[2+i])
	}
}

func TestReplayJSON(t *testing.T) {
	t.Parallel()
	got := objects(t, replayed(t, "--pool", "caching", "--json", training, training))
	require.Len(t, got, 2)
	for _, o := range got {
		for _, key := range []string{"trace", "kind", "operations", "ns_per_op", "peak_live_bytes",
			"peak_reserved_bytes", "reserved_per_live", "internal_fragmentation", "external_fragmentation",
			"source_calls", "failures", "metadata_bytes"} {
			require.Contains(t, o, key)
		}
		require.Contains(t, o["detail"], "num_alloc_retries", "the kind's own statistics")
		require.Equal(t, got[0]["peak_reserved_bytes"], o["peak_reserved_bytes"], "each on a pool of its own")
	}
}

func TestReplayPlacements(t *testing.T) {
	t.Parallel()
	path := traced(t, "allocate,0xa,1000,0x7", "allocate,0xb,3000,0x0", "free,0xa,1000,0x7")
	got := objects(t, replayed(t, "--pool", "buddy", "--option", "capacity=1MiB", "--placements", path))
	require.Equal(t, []map[string]any{
		{"trace": path, "kind": "buddy", "block": 0.0, "segment": 0.0, "offset": 0.0, "bytes": 1024.0,
			"requested_bytes": 1000.0, "stream": 7.0, "from": 0.0, "to": 2.0},
		{"trace": path, "kind": "buddy", "block": 1.0, "segment": 0.0, "offset": 4096.0, "bytes": 4096.0,
			"requested_bytes": 3000.0, "stream": 0.0, "from": 1.0, "to": nil},
		{"trace": path, "kind": "buddy", "segment": 0.0, "bytes": float64(1 << 20), "from": 0.0, "to": nil},
	}, got)
	all := objects(t, replayed(t, "--pool", "all", "--placements", path))
	for _, kind := range kinds.Names() {
		require.True(t, slices.ContainsFunc(all, func(o map[string]any) bool { return o["kind"] == kind }), kind)
	}
}

func TestReplayLimitAndOptions(t *testing.T) {
	t.Parallel()
	path := traced(t, "allocate,0xa,1000,0x0", "allocate,0xb,9000000,0x0", "free,0xa,1000,0x0")
	got := objects(t, replayed(t, "--pool", "caching", "--option", "device=1", "--memory", "4MiB", "--json", path))
	require.Len(t, got, 1)
	require.Equal(t, []any{"caching", "device=1", 1.0, float64(2 << 20)},
		[]any{got[0]["kind"], got[0]["options"], got[0]["failures"], got[0]["peak_reserved_bytes"]})
}
