package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/internal/hermetic"
	"tms/internal/recording/trace"
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

func simulated(t *testing.T, limit uint64) *Place {
	t.Helper()
	place, err := NewPlace("sim", limit)
	require.NoError(t, err)
	return place
}

// run replays, and also returns the events.
func run(t *testing.T, on *trace.Trace, o Options) (*Result, []Event) {
	t.Helper()
	var events []Event
	o.Each = func(e Event) error {
		events = append(events, e)
		return nil
	}
	result, err := Run(on, o)
	require.NoError(t, err)
	return result, events
}

func at(address uint64) *uint64 { return &address }

func TestEvents(t *testing.T) {
	on := parse(t, "allocate,0x1,100", "allocate,0x2,600", "free,0x1,100", "allocate,0x1,512",
		"allocate failure,(nil),2000", "free,0x2,600", "allocate,0x9,0", "free,0x9,0")
	result, events := run(t, on, Options{Kind: "naive", Place: simulated(t, 0)})
	require.Equal(t, []Event{
		{Index: 0, Action: "allocate", Size: 100, Address: at(0), Block: 100, Reserved: 100},
		{Index: 1, Action: "allocate", Size: 600, Address: at(512), Block: 600, Reserved: 700},
		{Index: 2, Action: "free", Size: 100, Address: at(0), Block: 100, Reserved: 600},
		{Index: 3, Action: "allocate", Size: 512, Address: at(0), Block: 512, Reserved: 1112},
		{Index: 4, Action: "allocate failure", Size: 2000, Address: at(1536), Block: 2000, Reserved: 1112},
		{Index: 5, Action: "free", Size: 600, Address: at(512), Block: 600, Reserved: 512},
		{Index: 6, Action: "allocate", Reserved: 512},
		{Index: 7, Action: "free", Reserved: 512},
	}, events)
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
	result, events := run(t, on, Options{Kind: "naive", Place: simulated(t, 1000)})
	require.Nil(t, events[1].Address)
	require.Contains(t, *events[1].Error, "out of memory")
	require.Equal(t, Event{Index: 2, Action: "free", Size: 600, Reserved: 600}, events[2], "nothing is there to free")
	require.Nil(t, events[4].Error)
	require.Equal(t, uint64(1), result.Failures)
	require.Zero(t, result.FreeFailures)
}

// A caching pool rounds to 512 bytes and takes segments of 2 MiB for small blocks.
func TestFragmentation(t *testing.T) {
	on := parse(t, "allocate,0x1,100", "allocate,0x2,1000", "free,0x1,100", "free,0x2,1000", "allocate,0x1,1500")
	result, _ := run(t, on, Options{Kind: "caching", Place: simulated(t, 0)})
	require.Equal(t, uint64(1536), result.PeakLive)
	require.InDelta(t, (1536.0-1100)/1536, result.Internal, 1e-9, "at the first peak")
	require.InDelta(t, (2*mib-1536.0)/(2*mib), result.External, 1e-9, "where most of it is live")
	require.InDelta(t, 2*mib/1536.0, result.ReservedPerLive, 1e-9)
	require.Equal(t, 1, result.SourceCalls)
}

func TestATraceOfNothing(t *testing.T) {
	for _, kind := range kinds.Names() {
		result, events := run(t, parse(t), Options{Kind: kind, Place: simulated(t, 0)})
		require.Empty(t, events)
		require.Zero(t, result.First+result.Again+result.Internal+result.External+result.ReservedPerLive)
		_, err := json.Marshal(result)
		require.NoError(t, err)
	}
}

func TestSettings(t *testing.T) {
	place := simulated(t, 8<<30)
	require.NoError(t, Check(Options{Kind: "caching", Settings: []string{"memory_fraction=0.5"}, Place: place}))
	for _, wrong := range []Options{{Kind: "best"}, {Kind: "caching", Settings: []string{"nonsense=1"}},
		{Kind: "caching", Settings: []string{"nonsense"}}} {
		wrong.Place = place
		require.ErrorIs(t, Check(wrong), pool.ErrOption)
		_, err := Run(parse(t), wrong)
		require.ErrorIs(t, err, pool.ErrOption)
	}
	on := parse(t, "allocate,0x1,5000000000", "allocate,0x2,1")
	got, _ := run(t, on, Options{Kind: "caching", Settings: []string{"memory_fraction=0.5", "device=3"}, Place: place})
	require.Equal(t, "memory_fraction=0.5,device=3", got.Settings)
	require.Equal(t, uint64(1), got.Failures)
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
		result, events := run(t, on, Options{Kind: kind, Place: simulated(t, 0)})
		require.Len(t, events, len(on.Events))
		require.Zero(t, result.Failures, kind)
		require.GreaterOrEqual(t, result.PeakLive, result.PeakRequested)
		require.GreaterOrEqual(t, result.PeakReserved, result.PeakLive)
		require.Less(t, result.Metadata, result.PeakReserved/100, kind)
		require.Positive(t, result.Metadata, kind)
		var reserved uint64
		for _, e := range events {
			require.Nil(t, e.Error)
			require.NotNil(t, e.Address)
			require.GreaterOrEqual(t, e.Block, e.Size)
			reserved = max(reserved, e.Reserved)
		}
		require.Equal(t, result.PeakReserved, reserved)
	}
}

// The same on devices of the simulator.
func TestDevices(t *testing.T) {
	t.Setenv("CUDASIM_MEMORY", "8G")
	_, err := cudasim.Load()
	require.NoError(t, err)
	on, settings := training(t), []string{"initial=2MiB", "reallocate=2MiB"}
	_, want := run(t, on, Options{Kind: "paddle", Settings: settings, Place: simulated(t, 0)})
	for _, name := range []string{"cuda", "vmm"} {
		place, err := NewPlace(name, 0)
		require.NoError(t, err, "with the simulator loaded the name libcuda.so.1 is its")
		result, events := run(t, on, Options{Kind: "paddle", Settings: settings, Place: place})
		require.Zero(t, result.Failures)
		require.Equal(t, name, result.Source)
		for i := range events {
			events[i].Address, want[i].Address = nil, nil
		}
		require.Equal(t, want, events, "but for the addresses")

		place, err = NewPlace(name, 0)
		require.NoError(t, err)
		result, events = run(t, parse(t, "allocate,0x1,9000000000", "allocate,0x2,100"),
			Options{Kind: "naive", Place: place})
		require.Equal(t, uint64(1), result.Failures)
		require.Contains(t, *events[0].Error, pool.ErrOutOfMemory.Error())
		require.Nil(t, events[1].Error)
	}
}

func TestTable(t *testing.T) {
	result, _ := run(t, parse(t, "allocate,0x1,3000000"), Options{Kind: "caching", Place: simulated(t, 0)})
	var text bytes.Buffer
	require.NoError(t, WriteTable(&text, []*Result{result, result}))
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, lines[1], lines[2])
	require.Regexp(t, `^caching +1 +\d+ +\d+ +2\.86 MiB +20\.00 MiB +6\.\d+ `, lines[1])
	require.Len(t, lines[1], len(lines[0]))
}

func TestEachMayStop(t *testing.T) {
	_, err := Run(parse(t, "allocate,0x1,1"), Options{Kind: "naive", Place: simulated(t, 0), Each: func(Event) error {
		return fmt.Errorf("stop: %w", os.ErrClosed)
	}})
	require.ErrorIs(t, err, os.ErrClosed)
}
