package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/hermetic"
)

const rankBytes = 8 << 20 // of each rank of the job

// startJob starts ranks that are always in collectives. own makes each one's environment.
func startJob(t *testing.T, ranks int, own func(rank int) []string) []*steered {
	t.Helper()
	program, shared := fixture(t, "collective"), filepath.Join(t.TempDir(), "shared")
	require.NoError(t, os.WriteFile(shared, make([]byte, 4096), 0o600))
	var started []*steered
	for rank := range ranks {
		command := exec.Command(program, shared, strconv.Itoa(rank), strconv.Itoa(ranks))
		command.Env = append(os.Environ(), reaching(t),
			"LD_LIBRARY_PATH="+built(t, "sim"), "CUDASIM_MEMORY=64M", "TMS_CONTROL=1")
		command.Env = append(command.Env, own(rank)...)
		started = append(started, startProgram(t, command))
	}
	for _, s := range started {
		require.Equal(t, "ready", s.line())
	}
	return started
}

// jobHeld returns what each rank has of its device.
func jobHeld(t *testing.T, ranks []*steered) (bytes []uint64) {
	t.Helper()
	for _, r := range ranks {
		bytes = append(bytes, held(t, r))
	}
	return bytes
}

func repeated(bytes uint64, times int) (all []uint64) {
	for range times {
		all = append(all, bytes)
	}
	return all
}

// wasKept reports whether a rank stays paused although its client has left. A process sees that end before it takes
// this connection: by then it is doing the undo, or has done it.
func wasKept(t *testing.T, ranks []*steered) (kept bool) {
	t.Helper()
	for _, r := range ranks {
		require.Eventually(t, func() bool {
			state, err := status(r.Process.Pid, time.Minute)
			require.NoError(t, err)
			return state.Doing == ""
		}, time.Minute, time.Millisecond)
		kept = kept || held(t, r) < rankBytes
	}
	return kept
}

// Ranks whose devices wait for one another are paused when all stand between the same two collectives.
func TestJob(t *testing.T) {
	ownSockets(t)
	const count = 3
	ranks := startJob(t, count, func(int) []string { return []string{"TORCHELASTIC_RUN_ID=lively"} })
	startJob(t, 1, func(int) []string { return []string{"SLURM_JOB_ID=77", "TORCHELASTIC_RUN_ID=none"} })
	tries, most := 0, 0
	for round := 0; round < hermetic.Often(40, 2) || tries <= round; round++ { // until a collective was in the way
		out, words, code := command(t, "pause", "--job", "lively", "--json", "--timeout", "60")
		require.Zero(t, code, words)
		var outcomes []outcome
		require.NoError(t, json.Unmarshal([]byte(out), &outcomes))
		require.Len(t, outcomes, count)
		for _, o := range outcomes {
			require.True(t, o.OK)
			require.EqualValues(t, rankBytes, o.Bytes)
		}
		tries += outcomes[0].Tries
		most = max(most, outcomes[0].Tries)
		require.Equal(t, repeated(0, count), jobHeld(t, ranks))
		_, words, code = command(t, "resume", "--job", "lively")
		require.Zero(t, code, words)
		require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))
	}
	t.Logf("%d tries, at most %d for one", tries, most)

	out, words, code := command(t, "ps", "--job", "lively", "--json")
	require.Zero(t, code, words)
	var states []process
	require.NoError(t, json.Unmarshal([]byte(out), &states))
	require.Len(t, states, count)
	require.Equal(t, []string{"lively"}, states[0].Jobs)
	_, words, _ = command(t, "ps", "--job", "dead")
	require.Equal(t, "tms: no process of job dead listens; see tms ps --help\n", words)
	out, _, _ = command(t, "ps", "--job", "77")
	require.Len(t, regexp.MustCompile(`(?m)^ *\d+ `).FindAllString(out, -1), 2) // a row for each tag
	_, words, code = command(t, "pause", "--job", "dead")
	require.Equal(t, exitUsage, code)
	require.Regexp(t, "^tms: no process of job dead listens; those that listen belong to (lively, 77|77, lively)\n$", words)

	out, words, code = command(t, "pause", "--job", "lively", "--timeout", "60", "--tag", "cache")
	require.Zero(t, code, words)
	require.Regexp(t, `(?m)^\d+: paused, 4\.00 MiB freed in \d+\.\d\d s, 4\.00 MiB without contents$`, out)
	require.Regexp(t, `(?m)^all 3 processes stood between the same collectives at try \d+$`, out)
	require.Equal(t, repeated(rankBytes/2, count), jobHeld(t, ranks))
	command(t, "resume", "--job", "lively")

	// All ranks end after the same collective, with what was written last.
	last := ranks[0].do("stop")
	for _, r := range ranks[1:] {
		require.Equal(t, last, r.line())
	}
}

// If one rank cannot be paused, or ends, the others are as before, and run on.
func TestJobIsNotPaused(t *testing.T) {
	ownSockets(t)
	const count = 3
	ranks := startJob(t, count, func(rank int) []string {
		environment := []string{"MASTER_ADDR=here", "MASTER_PORT=29500"}
		if rank == 1 { // its first unmapping is refused
			environment = append(environment, "CUDASIM_FAIL=cuMemUnmap:1:999")
		}
		return environment
	})
	_, words, code := command(t, "pause", "--job", "here:29500", "--timeout", "60")
	require.Equal(t, exitNo, code)
	spoiled := ranks[1].number()
	require.Regexp(t, "(?m)^tms: "+spoiled+": .*999", words)
	require.Regexp(t, "(?m)^tms: "+ranks[0].number()+": left as it was: process "+spoiled+": ", words)
	require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))
	_, words, code = command(t, "pause", "--job", "here:29500", "--timeout", "60") // the second time it works
	require.Zero(t, code, words)
	_, words, code = command(t, "resume", "--job", "here:29500")
	require.Zero(t, code, words)

	// The command is interrupted or killed at any moment. Killed just before its end, it has asked some ranks or all to
	// keep the pause.
	for i := range 20 {
		pausing := exec.Command(tms, "pause", "--job", "here:29500", "--timeout", "60")
		require.NoError(t, pausing.Start())
		time.Sleep(time.Duration(i) * 5 * time.Millisecond)
		kill := i%2 == 0
		require.NoError(t, pausing.Process.Signal([]os.Signal{syscall.SIGKILL, os.Interrupt}[i%2]))
		if err := pausing.Wait(); err == nil || kill && wasKept(t, ranks) {
			_, words, code := command(t, "resume", "--job", "here:29500")
			require.Zero(t, code, words)
		}
		require.Eventually(t, func() bool {
			return fmt.Sprint(jobHeld(t, ranks)) == fmt.Sprint(repeated(rankBytes, count))
		}, time.Minute, time.Millisecond, "after pause %d", i)
	}

	// One rank is stopped: the error names it, and the others go on.
	stop(t, ranks[2].Process)
	_, words, code = command(t, "pause", "--job", "here:29500")
	require.Equal(t, exitNoProcess, code)
	require.Contains(t, words, "tms: "+ranks[2].number()+": it does not answer (stopped?)\n")
	require.Contains(t, words, "tms: "+ranks[0].number()+": left as it was: process "+ranks[2].number()+": it does not answer")
	require.NoError(t, ranks[2].Process.Signal(syscall.SIGCONT))

	// One rank never comes to the collective: time runs out.
	require.NoError(t, ranks[2].Process.Kill())
	_ = ranks[2].Wait()
	for code = 0; code == 0; { // until the others wait for that rank
		_, words, code = command(t, "pause", "--job", "here:29500", "--timeout", "1.5")
		command(t, "resume", "--job", "here:29500")
	}
	require.Equal(t, exitNo, code)
	require.Regexp(t, `in \d+ tries the ranks never stood between the same collectives: gated pause: `, words)
	require.Equal(t, repeated(rankBytes, 2), jobHeld(t, ranks[:2]))
}

// A rank that is held up for a pause of the job runs on when the command is killed, whatever others have asked of it.
func TestAHeldRankIsResumedByAnother(t *testing.T) {
	ownSockets(t)
	both := "LD_PRELOAD=" + built(t, "lib", "libtms.so") + ":" + built(t, "lib", "libtms_reach.so")
	rank := func() *steered {
		return startSteered(t, steeredProgram(t), both, "MASTER_ADDR=here", "MASTER_PORT=2")
	}
	ready, busy := rank(), rank()
	ready.do("work")
	busy.do("busy 600000")
	other, err := client.Dial(ready.Process.Pid)
	require.NoError(t, err)
	defer other.Close()
	for range hermetic.Often(3, 1) {
		pausing := exec.Command(tms, "pause", "--job", "here:2", "--timeout", "600")
		require.NoError(t, pausing.Start())
		require.Eventually(t, func() bool { return heldUp(t, ready) }, time.Minute, time.Millisecond)
		reply, err := other.Do(context.Background(), control.Request{Op: control.Resume})
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
	ownSockets(t)
	both := "LD_PRELOAD=" + built(t, "lib", "libtms.so") + ":" + built(t, "lib", "libtms_reach.so")
	ready := startSteered(t, steeredProgram(t), both, "MASTER_ADDR=here", "MASTER_PORT=3")
	busy := startSteered(t, steeredProgram(t), both, "MASTER_ADDR=here", "MASTER_PORT=3")
	ready.do("work")
	busy.do("busy 600000")
	pausing := exec.Command(tms, "pause", "--job", "here:3", "--timeout", "8")
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
	}, time.Minute, time.Millisecond)
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
	cycles := func() int {
		count, err := strconv.Atoi(s.do("cycles"))
		require.NoError(s.t, err)
		return count
	}
	before := cycles()
	require.Eventually(s.t, func() bool { return cycles() > before+3 }, time.Minute, time.Millisecond)
}

func TestJobsOf(t *testing.T) {
	for name, environment := range map[string][]string{
		"run":       {"TORCHELASTIC_RUN_ID=run"},
		"a:1":       {"TORCHELASTIC_RUN_ID=none", "MASTER_ADDR=a", "MASTER_PORT=1"},
		"space@1":   {"PMIX_NAMESPACE=space@1", "OMPI_COMM_WORLD_SIZE=2"},
		"5":         {"SLURM_JOB_ID=5", "PMIX_NAMESPACE=other"},
		"5 and a:1": {"SLURM_JOB_ID=5", "MASTER_ADDR=a", "MASTER_PORT=1"},
		"":          {"MASTER_ADDR=a"},
	} {
		sleeping := exec.Command("sleep", "60")
		sleeping.Env = append(environment, "LAST=1")
		require.NoError(t, sleeping.Start())
		require.Eventually(t, func() bool { // by then it is the program
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", sleeping.Process.Pid))
			return strings.HasSuffix(string(text), "LAST=1\x00")
		}, time.Minute, time.Millisecond)
		jobs := jobsOf(sleeping.Process.Pid)
		require.NoError(t, sleeping.Process.Kill())
		_ = sleeping.Wait()
		wanted := map[string][]string{"": nil, "5 and a:1": {"5", "a:1"}}
		if _, special := wanted[name]; !special {
			wanted[name] = []string{name}
		}
		require.Equal(t, wanted[name], jobs)
	}
	for words, arguments := range map[string][]string{
		"or give --all or --job": {"pause", "--job", "x", "--all"},
		"the job is empty":       {"ps", "--job", ""},
		"leave --to out":         {"pause", "--job", "x", "--to", "disk"},
	} {
		_, stderr, code := command(t, arguments...)
		require.Equal(t, exitUsage, code, "%v", arguments)
		require.Contains(t, stderr, words)
	}
	_, err := control.ParseRequest([]byte(`{"version":1,"op":"pause","hold":true,"keep":true}`))
	require.ErrorContains(t, err, "takes no keep")
}
