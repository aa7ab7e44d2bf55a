package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/group"
)

// pair starts two programs on one device that holds one of them, 64 and 32 MiB; the first is paused.
func pair(t *testing.T) (large, small *steered, start func(environment ...string) *steered) {
	t.Helper()
	ownSockets(t)
	t.Setenv("CUDASIM_SHARED", filepath.Base(os.Getenv("TMPDIR"))) // for the command, too
	program := steeredProgram(t)
	start = func(environment ...string) *steered {
		t.Helper()
		return startSteered(t, program, append([]string{"CUDASIM_MEMORY=70M"}, environment...)...)
	}
	large = start(reaching(t))
	large.do("allocate") // as much again
	succeeds(t, "pause", large.number())
	return large, start(reaching(t)), start
}

func (s *steered) number() string { return strconv.Itoa(s.Process.Pid) }

// held returns what a process has of the device now.
func held(t *testing.T, s *steered) (bytes uint64) {
	t.Helper()
	state, err := status(s.Process.Pid, time.Minute)
	require.NoError(t, err)
	for _, d := range state.Stats.Devices {
		for _, tag := range d.Tags {
			bytes += tag.PhysicalBytes
		}
	}
	return bytes
}

const largeBytes, smallBytes = 64 << 20, 32 << 20

// TMS_SWAPS sets the number of swaps.
func TestSwap(t *testing.T) {
	in, out, start := pair(t)
	for i := range hermetic.Number(t, "TMS_SWAPS", 4) {
		require.Regexp(t, "^"+out.number()+`: paused, \d\d\.00 MiB freed in \d+\.\d\d s, (8|16)\.00 MiB without `+
			"contents\n"+in.number()+`: resumed, \d\d\.00 MiB in \d+\.\d\d s`+"\n$",
			succeeds(t, "swap", out.number(), in.number()), i)
		require.Equal(t, "ok", in.do("check"))
		in, out = out, in
	}
	small, large := out, in
	if held(t, small) == 0 {
		small, large = in, out
		succeeds(t, "swap", large.number(), small.number())
	}

	// A third process has the memory that IN needs: OUT is resumed.
	third := start() // without libtms_reach.so, so that it can work while it is paused
	third.do("pause", "hog")
	words, errors_, code := command(t, "swap", small.number(), large.number(), "--json")
	require.Equal(t, exitNo, code)
	require.Contains(t, errors_, "tms: "+small.number()+": resumed again: "+large.number()+" could not be\n")
	require.Contains(t, errors_, "tms: "+large.number()+": resume: ")
	outcomes := parsed[[]group.Outcome](t, words)
	require.Len(t, outcomes, 2)
	require.Equal(t, []int{small.Process.Pid, large.Process.Pid}, []int{outcomes[0].PID, outcomes[1].PID})
	require.False(t, outcomes[0].OK || outcomes[1].OK)
	require.Equal(t, 2, outcomes[1].Code) // cudaErrorMemoryAllocation
	require.Equal(t, "ok", small.do("check"))
	require.EqualValues(t, smallBytes, held(t, small))
	require.Zero(t, held(t, large))

	// The command is interrupted while it waits for that memory.
	resuming := func() bool { return large.doing() == control.Resume }
	require.Contains(t, interrupted(t, resuming, "swap", small.number(), large.number(), "--wait", "600"),
		"tms: "+large.number()+": interrupted: it was not resumed\n")
	require.EqualValues(t, smallBytes, held(t, small))

	// Another client pauses OUT at the same time.
	paused := false
	pausing := func() bool {
		if !paused && resuming() {
			_, _, code := command(t, "pause", small.number())
			paused = code == 0
		}
		return paused
	}
	require.Contains(t, interrupted(t, pausing, "swap", small.number(), large.number(), "--wait", "600"),
		"tms: "+small.number()+": still paused, because another client keeps it so: "+large.number()+" could not be "+
			"resumed\n")
	require.Zero(t, held(t, small))
	succeeds(t, "resume", small.number())
	require.EqualValues(t, smallBytes, held(t, small))

	// The wait ends well.
	go when(resuming, func() { third.do("unhog") })
	succeeds(t, "swap", small.number(), large.number(), "--wait", "60")
	require.EqualValues(t, largeBytes, held(t, large))

	// One tag: the other stays. A tag that already is paused, or active, is no failure.
	swap := []string{"swap", large.number(), small.number(), "--tag", "cache"}
	words = succeeds(t, swap...)
	require.Contains(t, words, large.number()+": paused, 16.00 MiB")
	require.Contains(t, words, small.number()+": resumed, 8.00 MiB")
	require.Equal(t, large.number()+": nothing to pause\n"+small.number()+": nothing to resume\n", succeeds(t, swap...))

	// A process that cannot be asked: nothing is done.
	require.Contains(t, fails(t, exitNoProcess, "tms: 999999999: there is no such process\n", "swap", large.number(),
		"999999999"),
		"tms: "+large.number()+": left as it was: 999999999 cannot be resumed\n")
	fails(t, exitNo, third.number()+": libtms_reach.so is not preloaded", "swap", third.number(),
		large.number()) // without --force
	require.EqualValues(t, largeBytes-16<<20, held(t, large))

	// IN's memory that the driver has comes back, too.
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim")) // for the command, which asks the driver
	succeeds(t, "pause", small.number(), "--everything")
	require.Regexp(t, small.number()+`: resumed, 32\.00 MiB in .* s; the driver's part in`,
		succeeds(t, "swap", large.number(), small.number()))
	require.Equal(t, "ok", small.do("check"))
}

// Without --wait, IN waits as TMS_RESUME_WAIT says, and the command can be interrupted.
func TestSwapWaitsAsTheProcessDoes(t *testing.T) {
	hermetic.Thorough(t)
	_, small, start := pair(t)
	succeeds(t, "pause", small.number())
	in := start(reaching(t), "TMS_RESUME_WAIT=10m")
	in.do("allocate") // as much again
	succeeds(t, "pause", in.number())
	succeeds(t, "resume", small.number())
	third := start()
	third.do("pause", "hog")
	const looks = "calls calls:cuMemGetInfo_v2" // a status looks, too
	before := in.count(looks)
	tried := func() bool { return in.count(looks) > before+5 }
	require.Contains(t, interrupted(t, tried, "swap", small.number(), in.number()),
		"tms: "+in.number()+": interrupted: it was not resumed\n")
	require.EqualValues(t, smallBytes, held(t, small))
	go when(func() bool { return in.doing() == control.Resume }, func() { third.do("unhog") })
	succeeds(t, "swap", small.number(), in.number())
	require.Equal(t, "ok", in.do("check"))
}

// However a swap is ended, one of the two has the device as soon as the processes are done.
func TestSwapIsEnded(t *testing.T) {
	in, out, _ := pair(t)
	bytes := map[*steered]uint64{in: largeBytes, out: smallBytes}
	done := map[bool]int{}
	moments := hermetic.Often(40, 10)
	for i := range moments {
		after := time.Duration(i/2) * 80 * time.Millisecond / time.Duration(moments)
		swap := cut(t, after, []os.Signal{os.Kill, os.Interrupt}[i%2], "swap", out.number(), in.number(), "--wait", "5")
		var swapped bool
		require.Eventually(t, func() bool {
			x, y := held(t, in), held(t, out)
			swapped = x > 0
			return x == bytes[in] && y == 0 || x == 0 && y == bytes[out]
		}, time.Minute, 5*time.Millisecond)
		if i%2 == 1 && swap.Exited() { // interrupted after its start: its exit code says which
			require.Equal(t, swapped, swap.Success(), "%v", swap)
		}
		done[swapped]++
		if swapped {
			in, out = out, in
		}
		succeeds(t, "pause", in.number()) // or it might still wait for memory, and take it in the middle of the next swap
		require.Equal(t, "ok", out.do("check"))
	}
	t.Logf("carried through: %d, undone: %d", done[true], done[false])
	require.Positive(t, done[false])
}
