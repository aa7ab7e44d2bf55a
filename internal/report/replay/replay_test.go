package replay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/report/trace"
	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

const mib = 1 << 20

func parse(t *testing.T, lines ...string) *trace.Trace {
	t.Helper()
	text := trace.Header + "\n"
	for _, line := range lines {
		text += "1,t," + line + ",0\n"
	}
	got, err := trace.Read("test", strings.NewReader(text))
	require.NoError(t, err)
	return got
}

func run(t *testing.T, on *trace.Trace, o Options) *Result {
	t.Helper()
	result, err := Run(on, o)
	require.NoError(t, err)
	return result
}

func TestResult(t *testing.T) {
	on := parse(t, "allocate,0x1,100", "allocate,0x2,600", "free,0x1,100", "allocate,0x1,512",
		"allocate failure,(nil),2000", "free,0x2,600", "allocate,0x9,0", "free,0x9,0")
	result := run(t, on, Options{Kind: "naive"})
	require.Equal(t, "naive", result.Kind)
	require.Equal(t, 8, result.Operations)
	require.Equal(t, uint64(3112), result.PeakReserved)
	require.Equal(t, uint64(512), result.Live, "what the trace left live")
	require.Equal(t, 7, result.SourceCalls)
	require.Equal(t, 1.0, result.ReservedPerLive)
	require.Zero(t, result.Internal)
	require.Zero(t, result.External)
	require.Positive(t, result.First)
	require.Positive(t, result.Again)
}

func TestWhatAPoolRefuses(t *testing.T) {
	on := parse(t, "allocate,0x1,600", "allocate,0x2,600", "free,0x2,600", "free,0x1,600", "allocate,0x2,1000")
	result := run(t, on, Options{Kind: "naive", Limit: 1000})
	require.Equal(t, uint64(1), result.Failures)
	require.Equal(t, []uint64{2, 1, 1000, 1000}, []uint64{result.Mallocs, result.Frees, result.Live, result.PeakReserved})
	require.Zero(t, result.FreeFailures, "nothing is there to free")
}

// A caching pool rounds to 512 bytes and takes segments of 2 MiB for small blocks.
func TestFragmentation(t *testing.T) {
	on := parse(t, "allocate,0x1,100", "allocate,0x2,1000", "free,0x1,100", "free,0x2,1000", "allocate,0x1,1500")
	result := run(t, on, Options{Kind: "caching"})
	require.Equal(t, uint64(1536), result.PeakLive)
	require.InDelta(t, (1536.0-1100)/1536, result.Internal, 1e-9, "at the first peak")
	require.InDelta(t, (2*mib-1536.0)/(2*mib), result.External, 1e-9, "where most of it is live")
	require.InDelta(t, 2*mib/1536.0, result.ReservedPerLive, 1e-9)
	require.Equal(t, 1, result.SourceCalls)
}

func TestATraceOfNothing(t *testing.T) {
	for _, kind := range kinds.Names() {
		result := run(t, parse(t), Options{Kind: kind})
		require.Zero(t, result.First+result.Again+result.Internal+result.External+result.ReservedPerLive)
		_, err := json.Marshal(result)
		require.NoError(t, err)
	}
}

func TestSettings(t *testing.T) {
	const limit = 8 << 30
	require.NoError(t, Check(Options{Kind: "caching", Settings: []string{"memory_fraction=0.5"}, Limit: limit}))
	for _, wrong := range []Options{{Kind: "best"}, {Kind: "caching", Settings: []string{"nonsense=1"}},
		{Kind: "caching", Settings: []string{"nonsense"}}} {
		wrong.Limit = limit
		require.ErrorIs(t, Check(wrong), pool.ErrOption)
		_, err := Run(parse(t), wrong)
		require.ErrorIs(t, err, pool.ErrOption)
	}
	on := parse(t, "allocate,0x1,5000000000", "allocate,0x2,1")
	got := run(t, on, Options{Kind: "caching", Settings: []string{"memory_fraction=0.5", "device=3"}, Limit: limit})
	require.Equal(t, "memory_fraction=0.5,device=3", got.Settings)
	require.Equal(t, uint64(1), got.Failures)
}

func TestPlacements(t *testing.T) {
	on := parse(t, "allocate,0x1,100", "allocate,0x2,3000000", "free,0x1,100", "allocate failure,(nil),600",
		"allocate,0x3,9000000000", "allocate,0x4,1000")
	placed := func(o Options) (segments []PlacedSegment, blocks []PlacedBlock) {
		require.NoError(t, Place(on, o, func(placed any) error {
			switch p := placed.(type) {
			case *PlacedSegment:
				segments = append(segments, *p)
			case *PlacedBlock:
				blocks = append(blocks, *p)
			}
			return nil
		}))
		return segments, blocks
	}
	segments, blocks := placed(Options{Kind: "caching", Limit: 1 << 30})
	require.Len(t, segments, 3)
	require.Equal(t, []any{0, 0, 4}, []any{segments[0].Segment, segments[0].From, *segments[0].To}, "in the shortage")
	require.Len(t, blocks, 4, "without the block that is refused")
	at := func(b PlacedBlock) []any {
		if b.To == nil {
			return []any{b.Block, b.Segment, b.Offset, b.Bytes, b.Requested, b.From, "end"}
		}
		return []any{b.Block, b.Segment, b.Offset, b.Bytes, b.Requested, b.From, *b.To}
	}
	require.Equal(t, []any{0, 0, uint64(0), uint64(512), uint64(100), 0, 2}, at(blocks[0]))
	require.Equal(t, []any{2, 0, uint64(0), uint64(1024), uint64(600), 3, 3}, at(blocks[1]))
	for _, b := range blocks[2:] {
		require.Nil(t, b.To)
	}

	// Every byte of a segment has at most one block at a time, whatever the kind.
	on = training(t)
	for _, kind := range kinds.Names() {
		segments, blocks := placed(Options{Kind: kind})
		sizes := map[int]uint64{}
		for _, s := range segments {
			sizes[s.Segment] = s.Bytes
		}
		require.Len(t, sizes, len(segments), kind)
		seen, end := map[int]bool{}, len(on.Events)
		to := func(b *PlacedBlock) int { return *cmp.Or(b.To, &end) }
		for i := range blocks {
			b := &blocks[i]
			require.LessOrEqual(t, b.Offset+b.Bytes, sizes[b.Segment], kind)
			require.GreaterOrEqual(t, b.Bytes, b.Requested)
			require.False(t, seen[b.Block], kind)
			seen[b.Block] = true
			for j := range blocks[:i] {
				other := &blocks[j]
				if b.Segment == other.Segment && b.From < to(other) && other.From < to(b) &&
					b.Offset < other.Offset+other.Bytes && other.Offset < b.Offset+b.Bytes {
					require.Fail(t, "blocks overlap", "%s: %+v and %+v", kind, *b, *other)
				}
			}
		}
	}
	refusal := errors.New("the disk is full")
	require.ErrorIs(t, Place(on, Options{Kind: "bfc"}, func(any) error { return refusal }), refusal)
}

// training is a trace with blocks that stay and blocks that come and go.
func training(t *testing.T) *trace.Trace {
	t.Helper()
	on, err := trace.ReadFile("testdata/training.csv.gz")
	require.NoError(t, err)
	return on
}

func TestEveryKindReplaysATraining(t *testing.T) {
	on := training(t)
	for _, kind := range kinds.Names() {
		result := run(t, on, Options{Kind: kind})
		require.Zero(t, result.Failures, kind)
		require.GreaterOrEqual(t, result.PeakLive, result.PeakRequested)
		require.GreaterOrEqual(t, result.PeakReserved, result.PeakLive)
		require.Less(t, result.Metadata, result.PeakReserved/100, kind)
		require.Positive(t, result.Metadata, kind)
	}
}

func TestTable(t *testing.T) {
	result := run(t, parse(t, "allocate,0x1,3000000"), Options{Kind: "caching"})
	var text bytes.Buffer
	require.NoError(t, WriteTable(&text, []*Result{result, result}))
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, lines[1], lines[2])
	require.Regexp(t, `^caching +1 +\d+ +\d+ +2\.86 MiB +20\.00 MiB +6\.\d+ `, lines[1])
	require.Len(t, lines[1], len(lines[0]))
}
