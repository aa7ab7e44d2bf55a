package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/group"
)

// pair starts two programs on one device that holds one of them, 64 and 32 MiB; the first is paused.
func pair(t *testing.T) (large, small *steered, start func(environment ...string) *steered) {
	t.Helper()
	return pairOf(t, "70M", 2, 1)
}

// pairOf is pair with these multiples of 32 MiB, in segments of 24 and 8.
func pairOf(t *testing.T, memory string, larges, smalls int, environment ...string) (large, small *steered,
	start func(environment ...string) *steered) {
	t.Helper()
	ownSockets(t)
	t.Setenv("CUDASIM_SHARED", filepath.Base(os.Getenv("TMPDIR"))) // for the command, too
	program := steeredProgram(t)
	start = func(environment ...string) *steered {
		t.Helper()
		return startSteered(t, program, append([]string{"CUDASIM_MEMORY=" + memory}, environment...)...)
	}
	of := func(count int) *steered {
		s := start(append(environment, reaching(t))...)
		for range count - 1 {
			s.do("allocate") // as much again
		}
		return s
	}
	large = of(larges)
	succeeds(t, "pause", large.number())
	return large, of(smalls), start
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

// However a swap is ended, and in whichever state, one of the two has the device as soon as the processes are done.
func TestSwapIsEnded(t *testing.T) {
	in, out, _ := pairOf(t, "140M", 4, 3, "TMS_EXTENT_BYTES=1")
	bytes := map[*steered]uint64{in: 4 * smallBytes, out: 3 * smallBytes}
	done := map[bool]int{}
	calls := func(of **steered, call string) func() bool {
		before := (*of).count("calls calls:" + call)
		return func() bool { return (*of).count("calls calls:"+call) > before }
	}
	states := map[string]func() func() bool{
		"it has begun":         func() func() bool { return func() bool { return true } },
		"it has the lock":      func() func() bool { return func() bool { return len(group.Lockers(uuidOf(0))) > 0 } },
		"OUT is pausing":       func() func() bool { return func() bool { return out.doing() == control.Pause } },
		"IN is resuming":       func() func() bool { return func() bool { return in.doing() == control.Resume } },
		"OUT saves":            func() func() bool { return calls(&out, "cuMemcpyDtoHAsync") },
		"OUT gives back":       func() func() bool { return calls(&out, "cuMemRelease") },
		"IN has taken memory":  func() func() bool { return calls(&in, "cuMemCreate") },
		"IN has some contents": func() func() bool { return calls(&in, "cuMemcpyHtoDAsync") },
		"IN is back":           func() func() bool { return func() bool { return held(t, in) == bytes[in] } },
	}
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, by := range []os.Signal{os.Kill, os.Interrupt} {
			for seen := false; !seen; { // else it was over before
				is := states[state]()
				swap := exec.Command(tms, "swap", out.number(), in.number(), "--wait", "5")
				require.NoError(t, swap.Start())
				ended := make(chan struct{})
				go func() { _ = swap.Wait(); close(ended) }()
				for over := false; !seen && !over; {
					select {
					case <-ended:
						over = true
					default:
						seen = is()
					}
				}
				_ = swap.Process.Signal(by)
				<-ended
				var swapped bool
				require.Eventually(t, func() bool {
					x, y := held(t, in), held(t, out)
					swapped = x > 0
					return x == bytes[in] && y == 0 || x == 0 && y == bytes[out]
				}, time.Minute, 5*time.Millisecond, "%s, %v", state, by)
				if by == os.Interrupt && swap.ProcessState.Exited() { // after its start: its exit code says which
					require.Equal(t, swapped, swap.ProcessState.Success(), "%s: %v", state, swap.ProcessState)
				}
				done[swapped]++
				if swapped {
					in, out = out, in
				}
				succeeds(t, "pause", in.number()) // or it might still wait for memory, and take it in the next swap
				require.Equal(t, "ok", out.do("check"))
			}
		}
	}
	t.Logf("carried through: %d, undone: %d", done[true], done[false])
	require.Positive(t, done[false])
}

// change is a pair in which a driver's call of one fails, or kills it, during a swap.
type change struct {
	in, out *steered
	fired   bool
}

// swap makes a swap in which the nth call of one from now fails, and returns the outcomes.
func (c *change) swap(t *testing.T, of *steered, call string, nth int) []group.Outcome {
	t.Helper()
	c.out.do("fill")
	before := of.count("fired")
	of.do(fmt.Sprint("fail ", call, " ", nth))
	words, _, code := command(t, "swap", c.out.number(), c.in.number(), "--json")
	c.fired = of.count("fired") > before
	of.do("fail")
	outcomes := parsed[[]group.Outcome](t, words)
	require.Equal(t, code == 0, outcomes[0].OK && outcomes[1].OK, words)
	return outcomes
}

// Whichever call of the driver fails in one of the two, in whichever direction, one of them has the device afterwards,
// and nothing is lost that a pause keeps. A pause that fails keeps all.
func TestSwapFailsInEitherProcess(t *testing.T) {
	hermetic.Thorough(t)
	in, out, _ := pairOf(t, "140M", 4, 3, "TMS_EXTENT_BYTES=1")
	c := &change{in: in, out: out}
	bytes := map[*steered]uint64{in: 4 * smallBytes, out: 3 * smallBytes}
	failed, done, back := 0, 0, 0
	for _, call := range []string{"cuMemcpyDtoHAsync", "cuMemHostRegister", "cuMemUnmap", "cuMemRelease", "cuMemCreate",
		"cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync", "cuMemGetInfo", "cuStreamSynchronize"} {
		for _, leaves := range []bool{true, false} {
			for nth := 1; nth < 9; nth++ {
				of := c.in
				if leaves {
					of = c.out
				}
				const makes = "calls calls:cuMemCreate"
				before := c.out.count(makes)
				outcomes := c.swap(t, of, call, nth)
				if !outcomes[0].OK && leaves && call == "cuMemcpyDtoHAsync" && c.out.count(makes) > before {
					back++ // it had given memory away
				}
				if outcomes[0].OK {
					done++
					c.in, c.out = c.out, c.in
				} else if failed++; !strings.Contains(outcomes[0].Error, "resumed again") &&
					!strings.Contains(outcomes[0].Error, "pause again") {
					require.Equal(t, "ok", c.out.do("filled"), "%s %d: %v", call, nth, outcomes)
				}
				require.EqualValues(t, bytes[c.out], held(t, c.out), "%s %d: %v", call, nth, outcomes)
				require.Zero(t, held(t, c.in), "%s %d: %v", call, nth, outcomes)
				require.Equal(t, "ok", c.out.do("check"), "%s %d: %v", call, nth, outcomes)
				if !c.fired {
					break
				}
			}
		}
	}
	t.Logf("%d swaps failed, %d were made", failed, done)
	require.Greater(t, failed, 5)
	require.Positive(t, back, "no copy has failed after a part had gone")
}

// Wherever one of the two is killed during a swap, the other goes on with all of its contents.
func TestSwapKillsEitherProcess(t *testing.T) {
	hermetic.Thorough(t)
	for _, victim := range []struct {
		call   string
		nth    int
		leaves bool
	}{{"cuMemcpyDtoHAsync", 1, true}, {"cuMemUnmap", 1, true}, {"cuMemRelease", 1, true}, {"cuMemUnmap", 2, true},
		{"cuMemRelease", 2, true}, {"cuMemCreate", 1, false}, {"cuMemMap", 1, false}, {"cuMemcpyHtoDAsync", 1, false},
		{"cuMemCreate", 2, false}} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			large, small, _ := pair(t)
			killed, other := large, small
			if victim.leaves {
				killed, other = small, large
			}
			killed.do(fmt.Sprint("fail ", victim.call, " ", victim.nth, " -1"))
			_, _, code := command(t, "swap", small.number(), large.number())
			require.NotZero(t, code)
			_ = killed.Cmd.Wait()
			if victim.leaves {
				require.Eventually(t, func() bool { return held(t, other) == 0 }, time.Minute, 5*time.Millisecond)
				succeeds(t, "resume", other.number())
			}
			other.comesTo(map[*steered]uint64{small: smallBytes, large: largeBytes}[other])
			require.Equal(t, "ok", other.do("check"))
		})
	}
}

// A command that is stopped while OUT stands still, and other commands have the device, keeps OUT no longer than its
// lease. Without that, OUT stands still for as long as they have it.
func TestSwapWaitsForTheLock(t *testing.T) {
	large, small, _ := pair(t)
	unlock, err := group.Lock(uuidOf(0))
	require.NoError(t, err)
	c := exec.Command(tms, "swap", small.number(), large.number(), "--timeout", "0.1")
	var said bytes.Buffer
	c.Stderr = &said
	require.NoError(t, c.Start())
	defer func() { _ = c.Process.Kill() }()
	require.Eventually(t, func() bool { return len(group.Lockers(uuidOf(0))) == 2 }, time.Minute, time.Millisecond)
	require.NoError(t, c.Process.Signal(syscall.SIGSTOP))
	require.Equal(t, "ok", small.do("check")) // which waits at the gate
	require.EqualValues(t, smallBytes, held(t, small))

	// It has heard of that once it goes on.
	require.NoError(t, c.Process.Signal(syscall.SIGCONT))
	require.Error(t, c.Wait())
	require.Contains(t, said.String(), "tms: "+small.number()+": this client was silent for ")
	require.Equal(t, "ok", small.do("check"))
	unlock()

	// A command that is not stopped keeps OUT until it has the lock.
	unlock, err = group.Lock(uuidOf(0))
	require.NoError(t, err)
	swapped := make(chan string, 1)
	go func() {
		words, _, _ := command(t, "swap", small.number(), large.number(), "--timeout", "0.1")
		swapped <- words
	}()
	require.Eventually(t, func() bool { return len(group.Lockers(uuidOf(0))) == 2 }, time.Minute, time.Millisecond)
	const looks = "calls calls:cuMemGetInfo_v2"
	before := small.count(looks)
	longer := func() bool { return small.count(looks) > before+6 } // statuses: that is longer than the lease
	require.Eventually(t, longer, time.Minute, 5*time.Millisecond)
	unlock()
	require.Contains(t, <-swapped, large.number()+": resumed")
}

// OUT has its memory back before another command that takes memory has the lock.
func TestSwapIsUndoneUnderTheLock(t *testing.T) {
	large, small, start := pair(t)
	third := start()
	third.do("pause")
	succeeds(t, "swap", small.number(), large.number())
	large.do("fail cuMemUnmap 2")
	code := make(chan int, 1)
	go func() {
		_, _, ended := command(t, "swap", large.number(), small.number())
		code <- ended
	}()
	require.Eventually(t, func() bool { return len(group.Lockers(uuidOf(0))) > 0 }, time.Minute, 100*time.Microsecond)
	unlock, err := group.Lock(uuidOf(0))
	require.NoError(t, err)
	require.EqualValues(t, largeBytes, held(t, large))
	third.do("hog")
	unlock()
	require.Equal(t, exitNo, <-code)
	require.Equal(t, "1", large.do("fired"))
	require.EqualValues(t, largeBytes, held(t, large))
	require.Equal(t, "ok", large.do("check"))
}

// A resume ahead takes what there is, and keeps its contents until it is told that all has come. Without that it gives
// everything back.
func TestAResumeAhead(t *testing.T) {
	_, small, start := pair(t)
	succeeds(t, "pause", small.number())
	large := start(reaching(t), "TMS_EXTENT_BYTES=1")
	large.do("allocate") // as much again
	succeeds(t, "swap", large.number(), small.number())
	uuid := uuidOf(0)
	free := small.count("free")
	for _, how := range []string{"undo", "goes", "complete"} {
		ends, done := make(chan control.SteerRequest, 1), make(chan control.Reply, 1)
		in, err := client.Dial(large.Process.Pid)
		require.NoError(t, err)
		ctx, goes := context.WithCancel(t.Context())
		go func() {
			request := control.SteerRequest{Op: control.Resume, Turn: true, Ahead: map[string]uint64{uuid: 0}}
			reply, err := in.DoAhead(ctx, request, ends)
			if err != nil {
				reply.Error = err.Error()
			}
			done <- reply
		}()
		require.Eventually(t, func() bool { return small.count("free") < free }, time.Minute, 5*time.Millisecond)
		require.Equal(t, control.Resume, large.doing())
		require.Zero(t, held(t, large), "it has not ended")
		switch how {
		case "undo":
			ends <- control.SteerRequest{Op: control.Undo}
			require.Contains(t, (<-done).Error, "the memory that was to come does not come")
		case "goes":
			goes()
			<-done
		default:
			out, err := client.Dial(small.Process.Pid)
			require.NoError(t, err)
			reply, err := out.Do(t.Context(), control.SteerRequest{Op: control.Pause, Parts: true})
			require.NoError(t, err)
			require.True(t, reply.OK, reply.Error)
			require.Equal(t, control.Resume, large.doing())
			require.Zero(t, held(t, large), "it has not ended")
			ends <- control.SteerRequest{Op: control.Complete}
			reply = <-done
			require.True(t, reply.OK, reply.Error)
			require.EqualValues(t, largeBytes, reply.Bytes)
			require.NoError(t, group.Ask(t.Context(), out, control.SteerRequest{Op: control.Keep}))
			out.Close()
			require.Equal(t, "ok", large.do("check"))
		}
		goes()
		in.Close()
		if how != "complete" {
			require.Eventually(t, func() bool { return small.count("free") == free }, time.Minute, 5*time.Millisecond)
			require.Equal(t, "ok", small.do("check"))
		}
	}
}
