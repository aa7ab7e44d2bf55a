package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"tms/internal/fleet"
	"tms/internal/group"
)

const rankBytes = 8 << 20 // of each rank of a job

// ranks are the processes of a job.
type ranks []*steered

// startRanks starts them. Each has its number as the argument RANK. What spoils is in the environment of rank 1 alone.
func startRanks(t *testing.T, count int, arguments []string, spoils string, environment ...string) (all ranks) {
	t.Helper()
	number := slices.Index(arguments, "RANK")
	for rank := range count {
		arguments[number] = strconv.Itoa(rank)
		command := exec.Command(arguments[0], arguments[1:]...)
		command.Env = append(os.Environ(), reaching(t), "LD_LIBRARY_PATH="+built(t, "sim"), "CUDASIM_MEMORY=64M",
			"TMS_CONTROL=1")
		command.Env = append(command.Env, environment...)
		if rank == 1 {
			command.Env = append(command.Env, spoils)
		}
		all = append(all, startProgram(t, command))
	}
	for _, r := range all {
		require.Equal(t, "ready", r.line())
	}
	return all
}

// startJob starts ranks that are always in collectives.
func startJob(t *testing.T, count int, spoils string, environment ...string) ranks {
	t.Helper()
	shared := filepath.Join(t.TempDir(), "shared")
	require.NoError(t, os.WriteFile(shared, make([]byte, 4096), 0o600))
	return startRanks(t, count, []string{fixture(t, "collective"), shared, "RANK", strconv.Itoa(count)}, spoils,
		environment...)
}

// hold reports whether each rank has so much of its device.
func (all ranks) hold(bytes uint64) bool {
	return !slices.ContainsFunc(all, func(r *steered) bool { return held(r.t, r) != bytes })
}

// end ends all ranks after the same collective, with what was written last.
func (all ranks) end() {
	all[0].t.Helper()
	last := all[0].do("stop")
	for _, r := range all[1:] {
		require.Equal(r.t, last, r.line())
	}
}

// kept reports whether a rank stays paused although its client has left. A process sees that end before it takes this
// connection: by then it is doing the undo, or has done it.
func (all ranks) kept() (kept bool) {
	for _, r := range all {
		require.Eventually(r.t, func() bool { return r.doing() == "" }, time.Minute, 5*time.Millisecond)
		kept = kept || held(r.t, r) < rankBytes
	}
	return kept
}

// areCut kills or interrupts the command that pauses them, at several moments, after which they go on. Killed just
// before its end, it has asked some ranks or all to keep the pause.
func (all ranks) areCut(job string, times int, apart time.Duration) {
	t := all[0].t
	t.Helper()
	for i := range times {
		kill := i%2 == 0
		ended := cut(t, time.Duration(i)*apart, []os.Signal{os.Kill, os.Interrupt}[i%2],
			"pause", "--job", job, "--timeout", "60")
		if ended.Success() || kill && all.kept() {
			succeeds(t, "resume", "--job", job)
		}
		require.Eventually(t, func() bool { return all.hold(rankBytes) }, time.Minute, time.Millisecond,
			"after pause %d", i)
	}
}

// Ranks whose devices wait for one another are paused when all stand between the same two collectives.
func TestJob(t *testing.T) {
	ownSockets(t)
	const count = 3
	ranks := startJob(t, count, "", "TORCHELASTIC_RUN_ID=lively")
	startJob(t, 1, "", "SLURM_JOB_ID=77", "TORCHELASTIC_RUN_ID=none")
	tries, most := 0, 0
	for round := 0; round < hermetic.Often(40, 2) || tries <= round; round++ { // until a collective was in the way
		outcomes := parsed[[]group.Outcome](t, succeeds(t, "pause", "--job", "lively", "--json", "--timeout", "60"))
		require.Len(t, outcomes, count)
		for _, o := range outcomes {
			require.True(t, o.OK)
			require.EqualValues(t, rankBytes, o.Bytes)
		}
		tries += outcomes[0].Tries
		most = max(most, outcomes[0].Tries)
		require.True(t, ranks.hold(0))
		succeeds(t, "resume", "--job", "lively")
		require.True(t, ranks.hold(rankBytes))
	}
	t.Logf("%d tries, at most %d for one", tries, most)

	states := parsed[[]fleet.Process](t, succeeds(t, "ps", "--job", "lively", "--json"))
	require.Len(t, states, count)
	require.Equal(t, []string{"lively"}, states[0].Jobs)
	_, words, _ := command(t, "ps", "--job", "dead")
	require.Equal(t, "tms: no process of job dead listens; see tms ps --help\n", words)
	out := succeeds(t, "ps", "--job", "77")
	require.Len(t, regexp.MustCompile(`(?m)^ *\d+ `).FindAllString(out, -1), 2) // a row for each tag
	require.Regexp(t, "^tms: no process of job dead listens; those that listen belong to (lively, 77|77, lively)\n$",
		fails(t, exitUsage, "", "pause", "--job", "dead"))

	out = succeeds(t, "pause", "--job", "lively", "--timeout", "60", "--tag", "cache")
	require.Regexp(t, `(?m)^\d+: paused, 4\.00 MiB freed in \d+\.\d\d s, 4\.00 MiB without contents$`, out)
	require.Regexp(t, `(?m)^all 3 processes stood between the same collectives at try \d+$`, out)
	require.True(t, ranks.hold(rankBytes/2))
	succeeds(t, "resume", "--job", "lively")
	ranks.end()
}

// If one rank cannot be paused, or ends, the others are as before, and run on.
func TestJobIsNotPaused(t *testing.T) {
	hermetic.Thorough(t)
	ownSockets(t)
	ranks := startJob(t, 3, "CUDASIM_FAIL=cuMemUnmap:1:999", "MASTER_ADDR=here", "MASTER_PORT=29500")
	pause := []string{"pause", "--job", "here:29500", "--timeout", "60"}
	spoiled := ranks[1].number()
	words := fails(t, exitNo, "tms: "+ranks[0].number()+": left as it was: process "+spoiled+": ", pause...)
	require.Regexp(t, "(?m)^tms: "+spoiled+": .*999", words)
	require.True(t, ranks.hold(rankBytes))
	succeeds(t, pause...) // the second time it works
	succeeds(t, "resume", "--job", "here:29500")
	ranks.areCut("here:29500", 20, 5*time.Millisecond)

	// One rank is stopped: the error names it, and the others go on.
	stop(t, ranks[2].Process)
	words = fails(t, exitNoProcess, "tms: "+ranks[2].number()+": it does not answer (stopped?)\n",
		"pause", "--job", "here:29500")
	require.Contains(t, words,
		"tms: "+ranks[0].number()+": left as it was: process "+ranks[2].number()+": it does not answer")
	require.NoError(t, ranks[2].Process.Signal(syscall.SIGCONT))

	// One rank never comes to the collective: time runs out.
	ranks[2].end()
	code := 0
	for code == 0 { // until the others wait for that rank
		_, words, code = command(t, "pause", "--job", "here:29500", "--timeout", "1.5")
		command(t, "resume", "--job", "here:29500")
	}
	require.Equal(t, exitNo, code)
	require.Regexp(t, `in \d+ tries the ranks never stood between the same collectives: gated pause: `, words)
	require.True(t, ranks[:2].hold(rankBytes))
}

// startReadyAndBusy starts the job here:1, of a rank that can be paused and one that cannot, and returns the first.
func startReadyAndBusy(t *testing.T) (ready *steered) {
	t.Helper()
	ownSockets(t)
	rank := func() *steered {
		return startSteered(t, steeredProgram(t), reaching(t), "MASTER_ADDR=here", "MASTER_PORT=1")
	}
	ready = rank()
	ready.do("work")
	rank().do("busy 600000")
	return ready
}

// A rank that is held up for a pause of the job runs on when the command is killed, whatever others have asked of it.
func TestAHeldRankIsResumedByAnother(t *testing.T) {
	ready := startReadyAndBusy(t)
	other, err := client.Dial(ready.Process.Pid)
	require.NoError(t, err)
	defer other.Close()
	for range hermetic.Often(3, 1) {
		pausing := exec.Command(tms, "pause", "--job", "here:1", "--timeout", "600")
		require.NoError(t, pausing.Start())
		require.Eventually(t, func() bool { return heldUp(t, ready) }, time.Minute, 5*time.Millisecond)
		reply, err := other.Do(context.Background(), control.SteerRequest{Op: control.Resume})
		require.NoError(t, err)
		require.True(t, reply.OK, reply.Error)
		require.NoError(t, pausing.Process.Kill()) // most likely before it releases its hold itself
		require.Error(t, pausing.Wait())
		ready.goesOn()
		require.False(t, heldUp(t, ready))
	}
}

// Nor does a stopped command hold ranks up for longer than its timeout; when it goes on, it says so.
func TestAJobsPauseThatIsStopped(t *testing.T) {
	hermetic.Thorough(t)
	ready := startReadyAndBusy(t)
	pausing := exec.Command(tms, "pause", "--job", "here:1", "--timeout", "8")
	var said strings.Builder
	pausing.Stderr = &said
	require.NoError(t, pausing.Start())
	require.Eventually(t, func() bool { // stopped while it holds the rank up, not as it is about to release it
		if !heldUp(t, ready) {
			return false
		}
		stop(t, pausing.Process)
		if heldUp(t, ready) {
			return true
		}
		require.NoError(t, pausing.Process.Signal(syscall.SIGCONT))
		return false
	}, time.Minute, 5*time.Millisecond)
	ready.goesOn()
	require.False(t, heldUp(t, ready))
	require.NoError(t, pausing.Process.Signal(syscall.SIGCONT))
	require.Error(t, pausing.Wait())
	require.Contains(t, said.String(), "tms: "+ready.number()+": ")
	ready.goesOn()
}

func heldUp(t *testing.T, s *steered) bool {
	t.Helper()
	state, err := status(s.Process.Pid, time.Minute)
	require.NoError(t, err)
	return state.HeldUp
}

// goesOn waits until the threads that give the device work do so; each may still have had one count to make.
func (s *steered) goesOn() {
	s.t.Helper()
	before := s.count("cycles")
	require.Eventually(s.t, func() bool { return s.count("cycles") > before+3 }, time.Minute, 5*time.Millisecond)
}
