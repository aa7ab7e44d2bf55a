package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool/kinds"
)

const training = "../../internal/recording/replay/testdata/training.csv.gz"

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
		for _, key := range []string{"trace", "kind", "source", "operations", "ns_per_op", "peak_live_bytes",
			"peak_reserved_bytes", "reserved_per_live", "internal_fragmentation", "external_fragmentation",
			"source_calls", "failures", "metadata_bytes"} {
			require.Contains(t, o, key)
		}
		require.Contains(t, o["detail"], "num_alloc_retries", "the kind's own statistics")
		require.Equal(t, got[0]["peak_reserved_bytes"], o["peak_reserved_bytes"], "each on a pool of its own")
	}
}

func TestReplayEvents(t *testing.T) {
	t.Parallel()
	path := traced(t, "allocate,0xa,1000,0x0", "allocate,0xb,9000000,0x0", "free,0xa,1000,0x0")
	got := objects(t, replayed(t, "--pool", "caching", "--option", "device=1", "--memory", "4MiB", "--events", path))
	require.Len(t, got, 4)
	require.Equal(t, map[string]any{"index": 0.0, "action": "allocate", "size": 1000.0, "address": 0.0, "block": 1024.0,
		"reserved": float64(2 << 20), "error": nil}, got[0])
	require.Nil(t, got[1]["address"])
	require.Contains(t, got[1]["error"], "out of memory")
	require.Equal(t, "free", got[2]["action"])
	require.Equal(t, "caching", got[3]["kind"])
	require.Equal(t, "device=1", got[3]["options"])
	require.Equal(t, 1.0, got[3]["failures"])
}

// With all but its last block free, a whole limit is one block again if regions are pausable memory, side by side.
func TestReplayJoinsRegions(t *testing.T) {
	t.Parallel()
	var actions []string
	for i := range 128 {
		actions = append(actions, fmt.Sprintf("allocate,%#x,%d,0x0", i+1, 4<<20))
	}
	for i := range 127 {
		actions = append(actions, fmt.Sprintf("free,%#x,%d,0x0", i+1, 4<<20))
	}
	path := traced(t, append(actions, fmt.Sprintf("allocate,0x200,%d,0x0", 508<<20))...)
	for source, failures := range map[string]float64{"vmm": 0, "cuda": 1} {
		stdout, stderr, code := execute(t, nil, []string{"replay", "--pool", "bfc", "--source", source,
			"--option", "memory_limit=512MiB", "--json", path}, "CUDASIM_MEMORY=1G")
		require.Empty(t, stderr)
		require.Zero(t, code)
		got := objects(t, stdout)[0]
		require.Equal(t, []any{source, failures}, []any{got["source"], got["failures"]})
	}
}

// python runs a program in Python on the snapshot s, and returns its output.
func python(t *testing.T, snapshot, program string) (output []byte) {
	t.Helper()
	output,
		err := exec.Command("python3", "-c", "import pickle, sys; s = pickle.load(open(sys.argv[1], 'rb'))\n"+program,
		snapshot).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return output
}

// Python can read the snapshot, which ends as the trace does.
func TestReplaySnapshot(t *testing.T) {
	t.Parallel()
	path := traced(t, "allocate,0xa,1000,0x0", "allocate,0xb,9000000,0x0", "allocate,0xc,3000,0x5", "free,0xa,1000,0x0")
	snapshot := filepath.Join(t.TempDir(), "a.pickle")
	replayed(t, "--pool", "naive", "--memory", "4MiB", "--snapshot", snapshot, path)
	output := python(t, snapshot, "import json; print(json.dumps(s))")
	const base = 1 << 40
	event := func(action string, address, size, stream float64) map[string]any {
		return map[string]any{"action": action, "addr": address, "size": size, "stream": stream, "frames": []any{}}
	}
	oom := event("oom", 0, 9000000, 0)
	oom["device_free"] = float64(4<<20 - 1000)
	var got, want map[string]any
	require.NoError(t, json.Unmarshal(output, &got))
	require.Equal(t, []any{[]any{event("segment_alloc", base, 1000, 0), event("alloc", base, 1000, 0), oom,
		event("segment_alloc", base+1024, 3000, 0), event("alloc", base+1024, 3000, 5),
		event("free_requested", base, 1000, 0), event("free_completed", base, 1000, 0),
		event("segment_free", base, 1000, 0)}}, got["device_traces"])
	require.NoError(t, json.Unmarshal([]byte(`{"segments": [{"device": 0, "address": 1099511628800, "total_size": 3000,
		"allocated_size": 3000, "active_size": 3000, "requested_size": 3000, "stream": 5, "segment_type": "large",
		"is_expandable": false, "frames": [], "blocks": [{"size": 3000, "requested_size": 3000,
		"state": "active_allocated", "frames": []}]}]}`), &want))
	require.Equal(t, want["segments"], got["segments"])

	replayed(t, "--pool", "caching", "--snapshot", snapshot, training)
	python(t, snapshot, `
live, held = {}, {}
for e in s["device_traces"][0]:
    if e["action"] == "alloc": live[e["addr"]] = e["size"]
    elif e["action"] == "free_completed": del live[e["addr"]]
    elif e["action"] == "segment_alloc": held[e["addr"]] = e["size"]
    elif e["action"] == "segment_free": del held[e["addr"]]
assert held == {g["address"]: g["total_size"] for g in s["segments"]}
seen = {}
for g in s["segments"]:
    at = g["address"]
    for b in g["blocks"]:
        if b["state"] == "active_allocated": seen[at] = b["requested_size"]
        at += b["size"]
    assert at == g["address"] + g["total_size"]
assert seen == live and len(live) > 10
`)
}

// Segments are named as the pool has them: small or large, and each with the stream that it was made for, also when
// nothing in it is live.
func TestReplaySnapshotOfCaching(t *testing.T) {
	t.Parallel()
	path := traced(t, "allocate,0xa,1000,0x5", "allocate,0xb,9000000,0x6", "allocate,0xc,3000,0x7",
		"allocate,0xd,5000,0x5",
		"free,0xc,3000,0x7", "free,0xb,9000000,0x6", "allocate,0xe,30000000,0x8")
	snapshot := filepath.Join(t.TempDir(), "a.pickle")
	replayed(t, "--pool", "caching", "--memory", "40MiB", "--snapshot", snapshot, path)
	output := python(t, snapshot, `
for g in s["segments"]: print(g["total_size"] >> 20, g["segment_type"], g["stream"])
for e in s["device_traces"][0]:
    if e["action"].startswith("segment"): print(e["action"], e["size"] >> 20, e["stream"])
`)
	require.Equal(t, []string{"2 small 5", "30 large 8", "segment_alloc 2 5", "segment_alloc 20 6", "segment_alloc 2 7",
		"segment_free 20 6", "segment_free 2 7", "segment_alloc 30 8"},
		strings.Split(strings.TrimSpace(string(output)), "\n"))
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	for words, arguments := range map[string][]string{
		"/none/a.pickle": {"--snapshot", "/none/a.pickle"},
		"needs a GPU":    {"--source", "cuda"},
	} {
		arguments = append([]string{"replay", "--pool", "bfc", training}, arguments...)
		_, stderr, code := execute(t, nil, arguments, "CUDASIM_DEVICES=0")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, words)
	}
}
