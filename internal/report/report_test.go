package report_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/report"
	"tms/internal/report/trace"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

// contents is a page's contents, as its script reads them.
type contents struct {
	Duration  float64
	Columns   int
	Exact     bool
	Processes []struct {
		PID        int
		Command    string
		Records    int
		Peak       [3]uint64
		Series     []struct{ Label string }
		Operations []struct {
			Kind, Tag, Bound        string
			From, Took              float64
			Bytes, Copied           uint64
			GBps                    float64 `json:"gb_per_s"`
			Waited, Copying, Driver float64
			Code                    int
			Over                    bool
		}
		AllOperations int `json:"all_operations"`
		Map           struct {
			Ranges      [][2]uint64
			Total       uint64
			Blocks      int
			Shown       int
			Rows, Cells int
		}
		Largest []struct {
			Address  string
			Size     uint64
			From, To *float64
		}
	}
	numbers *bytes.Reader
	times   []float64
}

func pageOf(t *testing.T, paths ...string) (contents, int) {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, report.WritePage(&page, paths))
	require.NotRegexp(t, `(?i)(src|href)=["']?(https?:)?//`, page.String(), "it needs something else")
	part := func(kind, id string) string {
		found := regexp.MustCompile(`<script type="` + kind + `" id="` + id +
			`">([^<]*)</script>`).FindStringSubmatch(page.String())
		require.NotNil(t, found, id)
		return found[1]
	}
	var c contents
	require.NoError(t, json.Unmarshal([]byte(part("application/json", "data")), &c))
	packed, err := base64.StdEncoding.DecodeString(part("text/plain", "numbers"))
	require.NoError(t, err)
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	whole, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	c.numbers = bytes.NewReader(whole)
	c.times = make([]float64, c.Columns+1)
	require.NoError(t, binary.Read(c.numbers, binary.LittleEndian, c.times))
	return c, page.Len()
}

// sums reads the next numbers: for each metric the sum of that many series at its most and least, by column.
func (c *contents) sums(t *testing.T, series int) (most, least [3][]float64) {
	t.Helper()
	for metric := range 3 {
		most[metric], least[metric] = make([]float64, c.Columns), make([]float64, c.Columns)
		for i := range series + 1 {
			values := make([]float32, c.Columns)
			require.NoError(t, binary.Read(c.numbers, binary.LittleEndian, values))
			for column, value := range values {
				if i < series {
					most[metric][column] += float64(value)
				} else {
					least[metric][column] = float64(value)
				}
			}
		}
	}
	return most, least
}

// requireSums compares each column of a page with what the recording did in that time.
func requireSums(t *testing.T, c *contents, r *recording, series int) {
	t.Helper()
	most, least := c.sums(t, series)
	start := r.moves[0].at
	next, now := 0, [3]uint64{}
	for column := range c.Columns {
		high, low := now, now
		first := true
		for ; next < len(r.moves); next++ {
			at := time.Duration(r.moves[next].at - start).Seconds()
			if at >= c.times[column+1] && column+1 < c.Columns {
				break
			}
			now = r.moves[next].sum
			if first && at == c.times[column] { // the earlier value ended with the previous column
				high, low = now, now
			}
			first = false
			for metric, value := range now {
				high[metric], low[metric] = max(high[metric], value), min(low[metric], value)
			}
		}
		for metric := range 3 {
			require.InEpsilon(t, float64(high[metric])+1, most[metric][column]+1, 1e-6, "column %d, metric %d",
				column, metric)
			if column > 0 { // before the first record nothing is known
				require.InEpsilon(t, float64(low[metric])+1, least[metric][column]+1, 1e-6, "column %d, metric %d",
					column, metric)
			}
		}
	}
	require.Equal(t, len(r.moves), next)
}

func TestPageOfAMillionEvents(t *testing.T) {
	hermetic.Thorough(t)
	if testing.Short() {
		t.Skip("-short is for the race detector, and there is one thread")
	}
	const events, pauses = 1_000_000, 40
	r, paused := busy(1, events, pauses)
	path := r.write(t, "busy.trace")
	c, size := pageOf(t, path)
	t.Logf("%d events: %d columns, %d bytes", events, c.Columns, size)
	require.Less(t, size, 1<<20)
	require.Greater(t, c.Columns, 1000)
	require.False(t, c.Exact)
	require.Len(t, c.Processes, 1)
	p := c.Processes[0]
	require.Equal(t, "python busy.py </script>", p.Command)
	require.Equal(t, 1001, p.PID)
	require.Equal(t, events+pauses*6, p.Records)
	require.Len(t, p.Series, 6)
	var peak [3]uint64
	for _, m := range r.moves {
		for metric, value := range m.sum {
			peak[metric] = max(peak[metric], value)
		}
	}
	require.Equal(t, peak, p.Peak)
	require.Len(t, p.Operations, 2*pauses)
	for i, o := range p.Operations {
		require.Equal(t, []string{"pause", "resume"}[i%2], o.Kind)
		require.Equal(t, "weights", o.Tag)
		require.Equal(t, paused[i/2], o.Bytes)
		require.Equal(t, paused[i/2], o.Copied)
		require.InEpsilon(t, float64(o.Bytes)/o.Took/1e9, o.GBps, 1e-9)
		require.Equal(t, "copying", o.Bound)
		require.InEpsilon(t, o.Took, o.Waited+o.Copying+o.Driver, 1e-6)
		require.True(t, o.Over)
	}
	requireSums(t, &c, r, len(p.Series))
	require.Equal(t, uint64(0), p.Map.Ranges[0][0]%mib)
	require.Greater(t, p.Map.Blocks, events/3)
	require.Positive(t, p.Map.Shown)
	for i, b := range p.Largest {
		require.LessOrEqual(t, b.Size, uint64(64*mib))
		if i > 0 {
			require.LessOrEqual(t, b.Size, p.Largest[i-1].Size)
		}
	}
	// In the cells, at each moment, the small blocks hold what is live besides the blocks shown one by one.
	cells := make([]byte, p.Map.Rows*p.Map.Cells)
	require.NoError(t, binary.Read(c.numbers, binary.LittleEndian, cells))
	blocks := make([][5]float64, p.Map.Shown)
	require.NoError(t, binary.Read(c.numbers, binary.LittleEndian, blocks))
	for _, cell := range []int{50, 200, 400} {
		from, to := float64(cell)/512*c.Duration, float64(cell+1)/512*c.Duration
		want, got, span := 0.0, 0.0, to-from
		for i, m := range r.moves { // live, over the cell's time
			until := c.Duration
			if i+1 < len(r.moves) {
				until = float64(r.moves[i+1].at-r.moves[0].at) / 1e9
			}
			want += max(0, min(to, until)-max(from, float64(m.at-r.moves[0].at)/1e9)) / span * float64(m.sum[1])
		}
		for _, b := range blocks {
			got += max(0, min(to, b[3])-max(from, b[2])) / span * b[1]
		}
		for row := range p.Map.Rows {
			got += float64(cells[row*p.Map.Cells+cell]) / 255 * float64(p.Map.Total) / float64(p.Map.Rows)
		}
		require.InEpsilon(t, want, got, 0.01)
	}
	require.Zero(t, c.numbers.Len())
}

// If there are few changes, each is shown.
func TestPageIsExact(t *testing.T) {
	r, _ := busy(2, 300, 3)
	c, size := pageOf(t, r.write(t, "few.trace"))
	require.True(t, c.Exact)
	require.Less(t, size, 200<<10)
	requireSums(t, &c, r, len(c.Processes[0].Series))
}

func TestPageOfSeveralProcesses(t *testing.T) {
	one, _ := busy(3, 2000, 2)
	other, _ := busy(4, 1000, 1)
	c, _ := pageOf(t, one.write(t, "one.trace"), other.write(t, "other.trace"))
	require.Len(t, c.Processes, 2)
	most, _ := c.sums(t, 2)
	var all, first, second float64
	for column := range c.Columns {
		all = max(all, most[1][column])
	}
	first, second = float64(c.Processes[0].Peak[1]), float64(c.Processes[1].Peak[1])
	require.GreaterOrEqual(t, all*(1+1e-6), max(first, second))
	require.LessOrEqual(t, all, (first+second)*(1+1e-6))
}

// The programs of the docs' example, recorded on the simulator.
func rollout(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.trace.gz")
	require.NoError(t, err)
	require.Len(t, paths, 2)
	return paths
}

func TestPageOfARealRecording(t *testing.T) {
	for _, paths := range [][]string{rollout(t), rl} {
		c, _ := pageOf(t, paths...)
		require.True(t, c.Exact)
		for _, p := range c.Processes {
			require.NotEmpty(t, p.Operations)
			for _, o := range p.Operations {
				require.True(t, o.Over)
				require.LessOrEqual(t, o.Waited+o.Copying, o.Took)
			}
		}
	}
}

// A trainer and sglang by turns on one H200, five rounds.
var rl = []string{"testdata/rl/trainer.trace.gz", "testdata/rl/sglang.trace.gz"}

// A recording that ends in the middle of an operation; what a free refers to; and what the engine knows beyond
// allocations.
func TestWhatRecordsMean(t *testing.T) {
	r := newRecording(1, "")
	r.malloc(0x1000, 100, "a")
	r.now += 1e6
	r.put(trace.Record{Kind: trace.Freed, Address: 0x9000, Thread: 7}) // from before the recording
	r.put(trace.Record{Kind: trace.Freed, Address: 0x1000, Thread: 7})
	r.put(trace.Record{Kind: trace.Unfreed, Address: 0x1000, Thread: 7})
	r.now += 1e6
	// 200 mapped by the program
	r.put(trace.Record{Kind: trace.Figures, Tag: r.tag("a"), Address: 300, Size: 4096, Stream: 1, Pool: 2, Other: 4})
	r.now += 1e6
	r.malloc(0x1000, 50, "a") // the previous block was freed unseen
	r.put(trace.Record{Kind: trace.Refused, Size: 1 << 40, Other: 2})
	r.put(trace.Record{Kind: trace.Made, Flags: trace.FlagBlock, Address: 0x2000, Size: 9, Pool: 5})
	r.put(trace.Record{Kind: trace.PoolDestroyed, Pool: 5})
	for i := range uint64(4) { // mapped by the program, side by side, and three of them unmapped at once
		r.put(trace.Record{Kind: trace.Made, Flags: trace.FlagPausable | trace.FlagMapped, Address: 0x8000 + 16*i,
			Size: 16, Tag: r.tag("b")})
	}
	r.put(trace.Record{Kind: trace.Freed, Flags: trace.FlagMapped, Address: 0x8000, Size: 48})
	r.put(trace.Record{Kind: trace.Freed, Flags: trace.FlagMapped, Address: 0x8888, Size: 48}) // unknown to the engine
	r.now += 1e6
	r.put(trace.Record{Kind: trace.Begin, Flags: uint8(trace.Resume), Thread: 1, Tag: r.tag("a")})
	r.now += 5e6
	r.put(trace.Record{Kind: trace.Begin, Flags: uint8(trace.Pause), Thread: 2})
	r.put(trace.Record{Kind: trace.End, Flags: uint8(trace.Pause), Thread: 2, Device: 304, Address: 1e9, Pool: 9e8})
	r.Write(make([]byte, 4096)) // space allocated ahead
	c, _ := pageOf(t, r.write(t, "cut.trace"))
	p := c.Processes[0]
	require.Equal(t, [3]uint64{4096 - 100 + 50 + 64, 50 + 200 + 64, 7}, p.Peak)
	stay := 0
	for _, b := range p.Largest {
		if b.Size == 16 && b.To == nil {
			stay++
		}
	}
	require.Equal(t, 1, stay)
	require.Len(t, p.Operations, 2)
	failed, open := p.Operations[0], p.Operations[1]
	require.Equal(t, "waiting", failed.Bound)
	require.Equal(t, 304, failed.Code)
	require.InDelta(t, 1.0, failed.Took, 1e-9) // it began a second earlier
	require.Equal(t, "", failed.Tag)
	require.False(t, open.Over)
	require.InDelta(t, 0.005, open.Took, 1e-9)
	require.Equal(t, "not known", open.Bound)
	require.Equal(t, 3+4, p.Map.Blocks) // 0x1000 three times, once withdrawn
}

// A wait in parts is one resume, and what comes later, or after a success, is another.
func TestAWaitInParts(t *testing.T) {
	r := newRecording(1, "")
	r.malloc(0x1000, 100, "a")
	resume := func(tag string, milliseconds uint64, code int16) {
		r.put(trace.Record{Kind: trace.Begin, Flags: uint8(trace.Resume), Thread: 1, Tag: r.tag(tag)})
		r.now += milliseconds * 1e6
		r.put(trace.Record{Kind: trace.End, Flags: uint8(trace.Resume), Thread: 1, Tag: r.tag(tag), Device: code,
			Address: milliseconds * 1e6, Pool: milliseconds * 9e5, Other: milliseconds * 1e5})
		r.now += 1e6
	}
	resume("a", 250, 2)
	resume("b", 10, 2) // another tag's
	resume("a", 250, 2)
	resume("a", 100, 0)
	resume("a", 1, 0)
	resume("a", 50, 2)
	r.now += 2e9
	resume("a", 50, 2)
	c, _ := pageOf(t, r.write(t, "parts.trace"))
	var took []string
	for _, o := range c.Processes[0].Operations {
		took = append(took, fmt.Sprintf("%s %d %.3f %.3f", o.Tag, o.Code, o.Took, o.Waited))
	}
	require.Equal(t, []string{"a 0 0.613 0.603", "b 2 0.010 0.009", "a 0 0.001 0.001", "a 2 0.050 0.045",
		"a 2 0.050 0.045"}, took)
}

func TestManyTags(t *testing.T) {
	r := newRecording(1, "")
	for i := range 100 {
		r.now += 1e6
		r.malloc(uint64(i+1)*0x10000000, uint64(i+1)*mib, "tag "+string(rune('a'+i%26))+strings.Repeat("x", i))
	}
	c, _ := pageOf(t, r.write(t, "many.trace"))
	series := c.Processes[0].Series
	require.Len(t, series, 12)
	require.Equal(t, "89 others", series[11].Label)
	requireSums(t, &c, r, len(series))
}

func TestPerfetto(t *testing.T) {
	r, paused := busy(5, 50_000, 10)
	var text bytes.Buffer
	require.NoError(t, report.WritePerfetto(&text, []string{r.write(t, "busy.trace")}))
	var made struct {
		TraceEvents []struct {
			Ph, Name string
			TS, Dur  float64
			Args     map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(text.Bytes(), &made))
	peak, slices := 0.0, 0
	for _, e := range made.TraceEvents {
		switch {
		case e.Ph == "C" && e.Name == "weights, device 0, bytes":
			peak = max(peak, e.Args["physical"].(float64))
		case e.Ph == "X":
			require.Equal(t, float64(paused[slices/2]), e.Args["bytes"])
			require.Positive(t, e.Dur)
			slices++
		}
	}
	require.Equal(t, 20, slices)
	most := 0.0
	for _, held := range paused {
		most = max(most, float64(held))
	}
	require.GreaterOrEqual(t, peak, most)
	require.False(t, math.IsInf(peak, 0))
	require.Less(t, text.Len(), 40<<20)
}

func TestNothingRecorded(t *testing.T) {
	r := newRecording(1, "")
	require.ErrorContains(t, report.WritePage(io.Discard, []string{r.write(t, "empty.trace")}),
		"nothing is recorded in it")
	require.ErrorIs(t, report.WritePage(io.Discard, []string{"report_test.go"}), trace.ErrMalformed)
}
