package caching

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// TestAsPyTorch repeats the requests that PyTorch 2.0.0's own allocator got, and compares every address, every counter
// and every block with its answers. The answers are in testdata/pytorch, with what made them. With an oracle at hand it
// compares as many more sequences as -rounds says.
var (
	oracle = flag.String("oracle", "", "the program that testdata/pytorch/build.sh makes")
	update = flag.Bool("update", false, "with -oracle, write the recorded answers again")
	rounds = flag.Int("rounds", 10, "with -oracle, how many further sequences to compare")
)

// scenario is a way to make requests. Its commands are lines of a letter and numbers:
//
//	m NAME SIZE STREAM   malloc           f NAME        free
//	r NAME STREAM        record stream    y STREAM      the stream's work is done
//	g GRAPH POOL STREAM  begin capture    h GRAPH       end capture
//	d POOL               graph destroyed  e             empty the cache
//	F FRACTION           set fraction     P, A          reset peaks, sums
//	s                    statistics       S             snapshot
type scenario struct {
	name     string
	options  string // ours
	settings string // PyTorch's
	capacity uint64
	largest  int // logarithm of the largest size
	streams  int
	fraction float64
	records  bool
	graphs   bool
	short    bool // memory runs out at times
}

// No sequence goes where PyTorch 2.0.0 is not to be followed: one step between powers of two, the interval of >, memory
// short during a capture.
var scenarios = []scenario{
	{name: "small", capacity: 64 << 30, largest: 20, streams: 1},
	{name: "plain", capacity: 64 << 30, largest: 28, streams: 3},
	{name: "short", capacity: 512 << 20, largest: 28, streams: 2, short: true},
	{name: "split", options: "max_split_size=32MiB", settings: "max_split_size_mb:32",
		capacity: 512 << 20, largest: 28, streams: 2, short: true},
	{name: "split-odd", options: "max_split_size=21MiB", settings: "max_split_size_mb:21",
		capacity: 256 << 20, largest: 26, streams: 2, short: true},
	{name: "divisions", options: "roundup_power2_divisions=8", settings: "roundup_power2_divisions:8",
		capacity: 64 << 30, largest: 28, streams: 2},
	{name: "division-list", options: "roundup_power2_divisions=[1:4;2:8;64:2;>:2]",
		settings: "roundup_power2_divisions:[1:4,2:8,64:2,>:2]", capacity: 64 << 30, largest: 28, streams: 2},
	{name: "gc", options: "garbage_collection_threshold=0.6", settings: "garbage_collection_threshold:0.6",
		capacity: 4 << 30, largest: 28, streams: 2, fraction: 0.25, short: true},
	{name: "records", capacity: 512 << 20, largest: 27, streams: 2, records: true, short: true},
	{name: "graphs", capacity: 256 << 30, largest: 26, streams: 3, records: true, graphs: true},
	{name: "everything", options: "max_split_size=64MiB,garbage_collection_threshold=0.8,roundup_power2_divisions=4",
		settings: "max_split_size_mb:64,garbage_collection_threshold:0.8,roundup_power2_divisions:4",
		capacity: 1 << 30, largest: 28, streams: 3, fraction: 0.75, records: true, short: true},
}

const recorder = 8 // the stream that uses the blocks of others; PyTorch wants external ones to be multiples of 8

// commands makes a sequence from a seed.
func (s scenario) commands(seed uint64, steps int) string {
	random := rand.New(rand.NewPCG(seed, 11))
	var text strings.Builder
	say := func(format string, arguments ...any) { fmt.Fprintf(&text, format+"\n", arguments...) }
	if s.fraction > 0 {
		say("F %v", s.fraction)
	}
	var live []int
	var underway, graphs []int // captures by graph, graphs by pool
	goal, graph := 40, 0
	for step := range steps {
		if step%100 == 0 {
			goal = 10 + random.IntN(80) // so that it grows and shrinks
		}
		switch choice := random.IntN(100); {
		case choice < 1 && len(underway) == 0:
			say("e")
		case choice < 2:
			say("%c", "PA"[random.IntN(2)])
		case choice < 12 && s.records && len(live) > 0:
			say("r %d %d", live[random.IntN(len(live))], recorder)
		case choice < 15 && s.records:
			say("y %d", recorder)
		case choice < 20 && s.graphs && len(underway) == 0:
			graph++
			shared := (graph + 1) / 2 // two graphs share a pool
			say("g %d %d %d", graph, shared, random.IntN(s.streams))
			underway, graphs = append(underway, graph), append(graphs, shared)
		case choice < 22 && len(underway) > 0:
			say("h %d", underway[0])
			underway = nil
		case choice < 24 && len(underway) == 0 && len(graphs) > 2:
			// The last pool's second graph may be still to come.
			at := random.IntN(len(graphs) - 2)
			say("d %d", graphs[at])
			graphs = slices.Delete(graphs, at, at+1)
		case random.IntN(2*goal) < len(live):
			at := random.IntN(len(live))
			if random.IntN(3) == 0 {
				at = len(live) - 1
			}
			say("f %d", live[at])
			live = slices.Delete(live, at, at+1)
		default:
			size := uint64(1)<<random.IntN(s.largest) + random.Uint64N(1<<random.IntN(s.largest))
			if random.IntN(2) == 0 {
				size = 1 << (10 + random.IntN(s.largest-10)) // sizes that come again
			}
			say("m %d %d %d", step, size, random.IntN(s.streams))
			live = append(live, step)
		}
		if step%50 == 49 {
			say("s")
		}
		if step%200 == 199 {
			say("S")
		}
	}
	return text.String()
}

// ask makes the oracle answer.
func (s scenario) ask(t *testing.T, commands string) []byte {
	t.Helper()
	ask := exec.Command(*oracle, fmt.Sprint(s.capacity))
	ask.Env = append(os.Environ(), "PYTORCH_CUDA_ALLOC_CONF="+s.settings)
	ask.Stdin = strings.NewReader(commands)
	var complaint bytes.Buffer
	ask.Stderr = &complaint
	answers, err := ask.Output()
	require.NoError(t, err, "%s\n%s", answers, complaint.String())
	return answers
}

func TestAsPyTorch(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			file := filepath.Join("testdata", "pytorch", s.name+".txt")
			if *oracle != "" {
				for seed := range uint64(*rounds) {
					s.compare(t, s.ask(t, s.commands(seed+1, 3000)))
				}
				if *update {
					require.NoError(t, os.WriteFile(file, s.ask(t, s.commands(0, 400)), 0o644))
				}
			}
			answers, err := os.ReadFile(file)
			require.NoError(t, err)
			s.compare(t, answers)
		})
	}
}

// compare plays commands and compares the answers.
func (s scenario) compare(t *testing.T, answers []byte) {
	t.Helper()
	r := replay{newBench(t, s.capacity, s.options), map[int]uintptr{}, map[int]pool.GraphPoolID{}}
	lines := bufio.NewScanner(bytes.NewReader(answers))
	lines.Buffer(nil, 1<<24)
	count := 0
	for ; lines.Scan(); count++ {
		command, answer, found := strings.Cut(lines.Text(), " =")
		require.True(t, found, lines.Text())
		// PyTorch goes to the next unit above 1024 of one, where 1 GiB is easier to read.
		answer = strings.ReplaceAll(strings.TrimSpace(answer), " 1024.00 MiB", " 1.00 GiB")
		require.Equal(t, answer, r.do(command), "line %d: %s", count+1, command)
	}
	require.NoError(t, lines.Err())
	require.Greater(t, count, 400)
	if s.short {
		require.Positive(t, r.Stats().Failures)
	}
	check(t, r.Pool)
	require.NoError(t, r.Pool.Destroy())
	require.Empty(t, slices.Concat(r.smallPool.lists, r.largePool.lists), "kept for a stream without segments")
	require.Zero(t, r.device.Held())
	require.Empty(t, r.device.events)
}

// replay does the commands to a pool.
type replay struct {
	bench
	addresses map[int]uintptr
	graphs    map[int]pool.GraphPoolID
}

func (r *replay) do(line string) (answer string) {
	var command string
	var a, b, c int
	var fraction float64
	if line[0] == 'F' {
		_, _ = fmt.Sscan(line, &command, &fraction)
	} else {
		_, _ = fmt.Sscan(line, &command, &a, &b, &c)
	}
	var err error
	switch command {
	case "m":
		var block pool.Block
		block, err = r.Malloc(uint64(b), pool.Stream(c))
		if errors.Is(err, pool.ErrOutOfMemory) {
			facts, _, _ := strings.Cut(err.Error(), " in total")
			return facts
		}
		r.addresses[a] = block.Address
		answer = fmt.Sprintf("%x", block.Address)
	case "f":
		err = r.Free(r.addresses[a])
	case "r":
		err = r.RecordStream(r.addresses[a], pool.Stream(b))
	case "y":
		r.device.complete(pool.Stream(a))
	case "g":
		r.graphs[a] = pool.GraphPoolID{uint64(b), 0}
		err = r.BeginAllocateToPool(r.graphs[a], func(stream pool.Stream) bool { return stream == pool.Stream(c) })
	case "h":
		err = r.EndAllocateToPool(r.graphs[a])
	case "d":
		err = r.ReleasePool(pool.GraphPoolID{uint64(a), 0})
	case "e":
		_, err = r.Trim()
	case "F":
		err = r.SetMemoryFraction(fraction)
	case "P":
		r.ResetPeakStats()
	case "A":
		before := r.Stats()
		r.resetSums()
		before.Detail = r.Stats().Detail
		require.Equal(r.t, before, r.Stats(), "only sums are reset")
	case "s":
		return r.statistics()
	case "S":
		return r.snapshot()
	}
	require.NoError(r.t, err, line)
	return answer
}

func (r *replay) statistics() string {
	var text []string
	say := func(numbers ...any) { text = append(text, strings.TrimSpace(fmt.Sprintln(numbers...))) }
	stat := func(s stat) { say(s.Current, s.Peak, s.Allocated, s.Freed) }
	d := r.detail()
	for _, a := range []statArray{d.Allocation, d.Segment, d.Active, d.InactiveSplit, d.AllocatedBytes,
		d.ReservedBytes, d.ActiveBytes, d.InactiveSplitBytes, d.RequestedBytes} {
		stat(a.All)
		stat(a.Small)
		stat(a.Large)
	}
	say(d.AllocRetries, d.OutOfMemories)
	stat(d.OversizeAllocations)
	stat(d.OversizeSegments)
	say(d.MaxSplitSize)
	return strings.Join(text, " ")
}

func (r *replay) snapshot() string {
	var text []string
	for _, s := range r.bench.Snapshot() {
		text = append(text, fmt.Sprintf("%x %s %d %d %d %d %d %d", s.Address, s.Type, s.Stream, s.Size, s.Allocated,
			s.Active, s.Requested, len(s.Blocks)))
		for _, b := range s.Blocks {
			state := map[pool.BlockState]string{pool.Allocated: "a", pool.PendingFree: "p", pool.Inactive: "i"}[b.State]
			text = append(text, fmt.Sprint(b.Size)+state)
		}
	}
	return strings.Join(text, " ")
}
