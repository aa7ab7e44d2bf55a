package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/report/trace"
)

// recorded reads all records of a file.
func recorded(t *testing.T, path string) (records []trace.Record, names []string) {
	t.Helper()
	r, file, err := trace.OpenRecords(path)
	require.NoError(t, err)
	defer file.Close()
	for {
		record, ok, err := r.Next()
		require.NoError(t, err)
		if !ok {
			return records, names
		}
		records, names = append(records, record), append(names, r.TagName(record))
	}
}

// Whatever ends the process, the file has everything up to the last record, also past the first window.
func TestRecordingSurvivesKill(t *testing.T) {
	const count = 20000
	path := filepath.Join(t.TempDir(), "trace")
	o := run(t, compile(t, "recording", majors[1]), []string{"killed", path, fmt.Sprint(count)}, "TMS_TRACE="+path)
	require.Equal(t, syscall.SIGKILL, o.state.Sys().(syscall.WaitStatus).Signal())
	records, names := recorded(t, path)

	made, freed, times := 0, 0, uint64(0)
	var ops []string
	var figures []trace.Record
	for i, r := range records {
		require.GreaterOrEqual(t, r.Time, times)
		times = r.Time
		switch r.Kind {
		case trace.Made:
			made++
			require.Equal(t, int16(0), r.Device)
			if r.Flags&trace.FlagPausable != 0 {
				require.Contains(t, []string{"churned", "weights"}, names[i])
			}
		case trace.Freed:
			freed++
		case trace.Begin:
			ops = append(ops, "begin "+trace.Operation(r.Flags).String()+" "+names[i])
		case trace.End:
			ops = append(ops, trace.Operation(r.Flags).String()+" "+names[i])
			require.Zero(t, r.Device) // the code
			require.Equal(t, uint64(4<<20), r.Size)
			require.Equal(t, uint64(4<<20), r.Stream, "contents")
			require.Positive(t, r.Address)
			require.LessOrEqual(t, r.Pool+r.Other, r.Address)
		case trace.Figures:
			if names[i] == "weights" {
				figures = append(figures, r)
			}
		}
	}
	require.Equal(t, count+2, made)
	require.Equal(t, count-64, freed)
	require.Equal(t, []string{"begin pause weights", "pause weights", "begin resume weights", "resume weights"}, ops)
	require.GreaterOrEqual(t, len(figures), 3)
	before, paused, after := figures[len(figures)-3], figures[len(figures)-2], figures[len(figures)-1]
	require.Equal(t, [3]uint64{4 << 20, 4 << 20, 0}, [3]uint64{before.Address, before.Size, before.Stream})
	require.Equal(t, [3]uint64{4 << 20, 0, 4 << 20}, [3]uint64{paused.Address, paused.Size, paused.Stream})
	require.Equal(t, [3]uint64{4 << 20, 4 << 20, 0}, [3]uint64{after.Address, after.Size, after.Stream})
	last := records[len(records)-1]
	require.Equal(t, uint64(12345), last.Size)
	require.Equal(t, strings.TrimSpace(o.stdout), fmt.Sprintf("%#x", last.Address))
	_, err := trace.ReadFile(path) // as tms replay does
	require.NoError(t, err)
}

// Whatever happens to the file, the program is unharmed and gets one message.
func TestRecordingLosesItsFile(t *testing.T) {
	program := compile(t, "recording", majors[1])
	for name, c := range map[string]struct {
		limit int // of files, in KiB
		words string
	}{
		"cut":     {0, "it was cut short, or its disk fails"},
		"removed": {0, "the file was removed, or another has its name"},
		"full":    {1500, "File too large"}, // like a full disk: the next window gets no blocks
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "trace")
			o := run(t, program, []string{name, path, "40000", fmt.Sprint(c.limit)}, "TMS_TRACE="+path).succeeded(t)
			require.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
			require.Contains(t, o.stderr, "tms: the recording to "+path)
			require.Contains(t, o.stderr, c.words)
			require.Contains(t, o.stderr, "no more is recorded")
			if name == "full" { // what was recorded is whole
				records, _ := recorded(t, path)
				require.Greater(t, len(records), 10000)
			}
		})
	}
}

func TestFaultsOfTheHostBesideARecording(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	o := runAnyway(t, compile(t, "recording", majors[1]), []string{"faulting", path}, "TMS_TRACE="+path)
	if !sanitized { // whose process ends in its own way
		require.Equal(t, syscall.SIGBUS, o.state.Sys().(syscall.WaitStatus).Signal(), o.stderr)
	}
	records, _ := recorded(t, path)
	require.Greater(t, len(records), 100)
}

// Zeros behind the last record are cut off when the program ends as it should.
func TestRecordingTakesNoMoreThanItNeeds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	run(t, compile(t, "recording", majors[1]), []string{"churn", path, "100"}, "TMS_TRACE="+path).succeeded(t)
	found, err := os.Stat(path)
	require.NoError(t, err)
	require.Less(t, found.Size(), int64(20<<10))
	require.Zero(t, found.Size()%64)
}

// A record makes no system call once its pages are there. Its cost is measured by scripts/bench.sh recording.
func TestRecordMakesNoSystemCall(t *testing.T) {
	program, path := compile(t, "recording", majors[1]), filepath.Join(t.TempDir(), "trace")
	folder := filepath.Dir(hermetic.Compile(t, "libcudart.so.13", "-O2", "-shared", "-fPIC",
		"-Wl,-soname,libcudart.so.13", "testdata/nothing.c"))
	run(t, program, []string{"quiet", path, "200"}, "LD_LIBRARY_PATH="+folder, "TMS_TRACE="+path).succeeded(t)
	records, _ := recorded(t, path)
	require.GreaterOrEqual(t, len(records), 2*200)
}

func recordTo(file string) control.SteerRequest {
	return control.SteerRequest{Op: control.Record, File: file}
}

// A client starts a recording, which has what is pausable at that time and what happens from then on, until the client
// ends it or is gone.
func TestRecordedFromOutside(t *testing.T) {
	h := onlyControlled(t)
	descriptors := h.do("descriptors")
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	c := h.dial()
	own := filepath.Join(t.TempDir(), "own")
	require.NoError(t, os.WriteFile(own, []byte("the user's own file\n"), 0o600))
	for file, words := range map[string]string{
		own:           "it is no recording, and would be lost",
		"relative":    "by its path from the root",
		"/dev/full":   "it is no plain file",
		"/none/there": "No such file or directory",
		"":            "which it ends by a record without a file",
	} {
		reply := request(t, c, recordTo(file))
		require.False(t, reply.OK)
		require.Contains(t, reply.Error, words)
	}
	text, err := os.ReadFile(own)
	require.NoError(t, err)
	require.Equal(t, "the user's own file\n", string(text))
	well(t, c, recordTo(first))
	require.Equal(t, descriptors, h.do("descriptors"))
	other := h.dial()
	reply := request(t, other, recordTo(second))
	require.Contains(t, reply.Error, "it is recorded already, to "+first)
	other.Close()
	h.do("own 3")
	h.do("pause weights")
	h.do("resume weights")
	well(t, c, recordTo(""))
	h.do("own 5")
	records, names := recorded(t, first)
	var told []string
	for i, r := range records {
		if r.Kind == trace.Figures { // at the beginning, and around the pause and the resume
			told = append(told, fmt.Sprintf("figures %s %d %d %d", names[i], r.Address/mib, r.Size/mib, r.Stream/mib))
			continue
		}
		told = append(told, fmt.Sprintf("%d %d %s %d", r.Kind, r.Flags, names[i], r.Size/mib))
	}
	const made, begin, end, earlier = trace.Made, trace.Begin, trace.End, trace.FlagPausable | trace.FlagEarlier
	require.ElementsMatch(t, []string{
		fmt.Sprintf("%d %d weights 24", made, earlier), fmt.Sprintf("%d %d cache 8", made, earlier),
		"figures weights 24 24 0", "figures cache 8 8 0", fmt.Sprintf("%d 0  3", made),
		fmt.Sprintf("%d %d weights 0", begin, trace.Pause), "figures weights 24 0 24",
		fmt.Sprintf("%d %d weights 24", end, trace.Pause), fmt.Sprintf("%d %d weights 0", begin, trace.Resume),
		"figures weights 24 24 0", fmt.Sprintf("%d %d weights 24", end, trace.Resume),
	}, told)

	// A file to which another process records stays as it is.
	theirs, err := os.Open(first)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(theirs.Fd()), syscall.LOCK_EX))
	before := read(t, first)
	require.Contains(t, request(t, c, recordTo(first)).Error, "another process records to it")
	after := read(t, first)
	require.Equal(t, before, after)
	require.NoError(t, theirs.Close())

	// A client that leaves ends its recording, and the next can begin one; what was recorded is untouched.
	well(t, c, recordTo(second))
	h.do("own 1")
	c.Close()
	again := h.dial()
	third := filepath.Join(t.TempDir(), "third")
	until(t, func() bool { return request(t, again, recordTo(third)).OK })
	h.do("own 7")
	records, _ = recorded(t, second)
	require.Equal(t, uint64(1*mib), records[len(records)-1].Size)

	// A recording that has lost its file gives the reason when it is to end.
	require.NoError(t, os.Truncate(third, 0))
	h.do("own 9")
	reply = request(t, again, recordTo(""))
	require.Contains(t, reply.Error, "it was cut short, or its disk fails")
	until(t, func() bool { return strings.Contains(h.stderr.String(), "\n") })
	require.Equal(t, 1, strings.Count(h.stderr.String(), "\n"), h.stderr)
	require.Equal(t, "ok", h.do("check"))
}

// A recording has memory that the program maps itself under its tag, while it is mapped; a replay leaves it out.
func TestRecordingOfMappings(t *testing.T) {
	hermetic.Thorough(t)
	path := filepath.Join(t.TempDir(), "trace")
	run(t, compile(t, "expandable", majors[1]), nil, "TMS_TRACE="+path).succeeded(t)
	records, names := recorded(t, path)
	live := trace.NewLive()
	mapped, most := uint64(0), uint64(0)
	for i, r := range records {
		if r.Flags&trace.FlagMapped == 0 || r.Kind != trace.Made && r.Kind != trace.Freed {
			continue
		}
		if r.Kind == trace.Made {
			require.NotEmpty(t, names[i])
			require.NotZero(t, r.Flags&trace.FlagPausable)
		}
		live.Apply(r, func(b trace.Record) { mapped += b.Size }, func(b trace.Record, _ uint64) { mapped -= b.Size })
		most = max(most, mapped)
	}
	require.GreaterOrEqual(t, most, uint64(8*mib))
	require.Less(t, mapped, most)
	replayable, err := trace.ReadFile(path)
	require.NoError(t, err)
	blocks := 0
	for _, r := range records {
		if r.Kind == trace.Made && r.Flags&trace.FlagMapped == 0 {
			blocks++
		}
	}
	require.Equal(t, blocks, replayable.Blocks)
}
