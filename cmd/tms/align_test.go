package main

import (
	"context"
	"fmt"
	"io"
	"os"
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

const apartBytes = 8 << 20 // of each rank

// startApart starts the ranks of a job, which use NCCL and run far apart from one another. The file sequences says what
// all have launched (libnccl.c).
func startApart(t *testing.T, kind string, count int, environment ...string) (started ranks, sequences string) {
	t.Helper()
	folder := t.TempDir()
	shared, sequences := filepath.Join(folder, "shared"), filepath.Join(folder, "sequences")
	require.NoError(t, os.WriteFile(shared, make([]byte, 4096), 0o600))
	require.NoError(t, os.WriteFile(sequences, make([]byte, 16*4096), 0o600))
	ownSockets(t)
	environment = append(environment, "FAKE_NCCL_SHARED="+sequences, "TORCHELASTIC_RUN_ID=apart", "TMS_COMMAND="+tms)
	arguments := []string{fixture(t, "apart"), buildNCCL(t, ncclNew), shared, "RANK", strconv.Itoa(count), kind}
	return startRanks(t, count, arguments, "", environment...), sequences
}

// pauseApart pauses the job a number of times, and returns how many tries each pause took.
func pauseApart(t *testing.T, ranks ranks, pauses int, more ...string) (tries []int) {
	t.Helper()
	for range pauses {
		start := time.Now()
		outcomes := parsed[[]group.Outcome](t, succeeds(t, append([]string{"pause", "--job", "apart", "--json"}, more...)...))
		require.Len(t, outcomes, len(ranks))
		for _, o := range outcomes {
			require.EqualValues(t, apartBytes, o.Bytes)
		}
		tries = append(tries, outcomes[0].Tries)
		t.Logf("%d tries, %.3f s", outcomes[0].Tries, time.Since(start).Seconds())
		before := ranks[0].do("work")
		succeeds(t, "resume", "--job", "apart")
		require.Eventually(t, func() bool { return ranks[0].do("work") != before },
			time.Minute, time.Millisecond, "it goes on")
	}
	return tries
}

// Ranks that are far apart stand together at the first or second try, whatever communicators they have in whatever
// order, if the machine once leaves them the time; and none waits for an alignment's end, ten minutes.
func TestRanksThatAreApart(t *testing.T) {
	for kind, count := range map[string]int{"world": 3, "crossed": 3, "grid": 4, "pipeline": 3, "waiting": 3} {
		t.Run(kind, func(t *testing.T) {
			ranks, _ := startApart(t, kind, count)
			tries := pauseApart(t, ranks, hermetic.Often(8, 2), "--timeout", "300")
			for slices.Min(tries) > 2 && len(tries) < 50 {
				tries = append(tries, pauseApart(t, ranks, 1, "--timeout", "300")...)
			}
			require.LessOrEqual(t, slices.Min(tries), 2)
			ranks.end()
		})
	}
}

// Collectives that graphs launch are not counted: with others between them the ranks still stand together; without
// others the command tries until they do.
func TestRanksWithCollectivesInGraphs(t *testing.T) {
	hermetic.Thorough(t)
	for kind, c := range map[string]struct{ count, pauses int }{
		"mixed": {3, hermetic.Often(6, 2)}, // at the first try on a machine with nothing else to do
		"graph": {2, hermetic.Often(2, 1)},
	} {
		t.Run(kind, func(t *testing.T) {
			ranks, _ := startApart(t, kind, c.count)
			pauseApart(t, ranks, c.pauses, "--timeout", "60")
			ranks.end()
		})
	}
}

// With everything, for which no rank may be inside NCCL.
func TestRanksThatAreApartWithEverything(t *testing.T) {
	hermetic.Thorough(t)
	for _, kind := range []string{"world", "pipeline"} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv("LD_LIBRARY_PATH", built(t, "sim")) // for the command
			t.Setenv("CUDASIM_SHARED", "apart-"+kind+strconv.Itoa(os.Getpid()))
			ranks, _ := startApart(t, kind, 3, "CUDASIM_MEMORY=128M")
			for range hermetic.Often(3, 1) {
				out := succeeds(t, "pause", "--job", "apart", "--everything")
				require.Equal(t, len(ranks), strings.Count(out,
					"NCCL 2.29.7: 2 communicators with 8.00 MiB suspended; the rest by the driver"), out)
				require.Regexp(t, `all 3 processes stood between the same collectives at try \d+\n`, out)
				succeeds(t, "resume", "--job", "apart")
			}
			ranks.end()
		})
	}
}

// Whenever a command ends, what it leaves holds no rank back; nor does a rank that ends.
func TestAlignmentsThatEnd(t *testing.T) {
	hermetic.Thorough(t)
	t.Run("the command", func(t *testing.T) {
		ranks, _ := startApart(t, "grid", 4)
		moments := hermetic.Often(40, 6)
		for i := range moments {
			after := time.Duration(i) * 100 * time.Millisecond / time.Duration(moments)
			cut(t, after, []os.Signal{os.Kill, os.Interrupt}[i%2], "pause", "--job", "apart")
			command(t, "resume", "--job", "apart") // of paused ranks, if the pause was done
			for _, r := range ranks {
				r.advances("work")
			}
		}
		pauseApart(t, ranks, 1)
		ranks.end()
	})
	t.Run("a rank", func(t *testing.T) {
		for i := range hermetic.Often(6, 2) {
			ranks, sequences := startApart(t, "world", 3)
			time.AfterFunc(time.Duration(5+20*i)*time.Millisecond, func() { _ = ranks[2].Process.Kill() })
			_, words, code := command(t, "pause", "--job", "apart", "--timeout", "2")
			if code == 0 {
				_, words, code = command(t, "resume", "--job", "apart")
			}
			t.Log(code, words)
			_ = ranks[2].Wait()
			// Once NCCL lets the others go on, nothing else holds them back.
			file, err := os.OpenFile(sequences, os.O_WRONLY, 0)
			require.NoError(t, err)
			for sequence := range 2 {
				_, err := file.WriteAt([]byte{0, 0, 0, 0, 1, 0, 0, 0}, int64(4096+sequence*15*8+(1+2)*8))
				require.NoError(t, err)
			}
			require.NoError(t, file.Close())
			for _, r := range ranks[:2] {
				r.advances("work")
			}
		}
	})
}

// Others wait for a slow rank, but not for a stopped one. A busy machine may wake or stop the rank at the wrong moment;
// then the test tries once more.
func TestARankThatIsFarBehind(t *testing.T) {
	hermetic.Thorough(t)
	ranks, _ := startApart(t, "world", 3)
	for tries := 2; tries > 1; {
		ranks[1].do("sleep")
		tries = pauseApart(t, ranks, 1)[0]
	}
	var words string
	for code := 0; code == 0; {
		ranks[1].do("sleep")
		stopped := make(chan error, 1)
		time.AfterFunc(500*time.Millisecond, func() { stopped <- ranks[1].Process.Signal(syscall.SIGSTOP) })
		_, words, code = command(t, "pause", "--job", "apart")
		require.NoError(t, <-stopped)
		if code == 0 {
			require.NoError(t, ranks[1].Process.Signal(syscall.SIGCONT))
			succeeds(t, "resume", "--job", "apart")
		}
	}
	require.Contains(t, words, "tms: "+ranks[1].number()+": it does not answer (stopped?)\n")
	require.Contains(t, words,
		"tms: "+ranks[0].number()+": left as it was: process "+ranks[1].number()+": it does not answer")
	require.NoError(t, ranks[1].Process.Signal(syscall.SIGCONT))
	ranks[1].advances("work")
	pauseApart(t, ranks, 1)
	ranks.end()
}

// aligning is a client that aligns one process.
type aligning struct {
	*client.Conn
	t *testing.T
}

func startAligning(t *testing.T, pid int) *aligning {
	t.Helper()
	connection, err := client.Dial(pid)
	require.NoError(t, err)
	t.Cleanup(connection.Close)
	return &aligning{connection, t}
}

func (a *aligning) ask(request control.SteerRequest) control.Reply {
	a.t.Helper()
	reply, err := a.Do(context.Background(), request)
	require.NoError(a.t, err)
	return reply
}

func (a *aligning) align(targets map[string]uint64) *control.Alignment {
	a.t.Helper()
	reply := a.ask(control.SteerRequest{Op: control.Align, Targets: targets, Wait: 0.01})
	require.True(a.t, reply.OK, reply.Error)
	return reply.Alignment
}

// until asks again until a thread is held back before a sequence.
func (a *aligning) until(name string, targets map[string]uint64) *control.Alignment {
	a.t.Helper()
	var found *control.Alignment
	require.Eventually(a.t, func() bool {
		found = a.align(targets)
		return slices.ContainsFunc(found.Sequences, func(s control.Sequence) bool { return s.Name == name && s.Wanted })
	}, time.Minute, 5*time.Millisecond)
	return found
}

func TestAlign(t *testing.T) {
	c := startNCCL(t, "handle", ncclNew)
	c.do("ranks 1 3")
	say := func(word string) {
		t.Helper()
		_, err := io.WriteString(c.say, word+"\n")
		require.NoError(t, err)
	}
	a := startAligning(t, c.Process.Pid)
	found := a.align(nil)
	require.True(t, found.Reached)
	require.Len(t, found.Sequences, 1)
	name := found.Sequences[0].Name
	sends := func(to int) string { return fmt.Sprintf("%s:0:%d", name, to) }
	require.Equal(t, control.Sequence{Name: name, Ranks: 3, Here: 1}, found.Sequences[0])

	// A thread that is held back is not inside NCCL, has nothing in its group yet, and goes on when all is undone.
	say("reduce")
	found = a.until(name, map[string]uint64{name: 0})
	for range hermetic.Often(1000, 100) { // and is seen to be so, however often the client asks
		require.Equal(t, found, a.align(map[string]uint64{name: 0}))
	}
	other := startAligning(t, c.Process.Pid)
	require.Contains(t, other.ask(control.SteerRequest{Op: control.Align}).Error,
		"another client aligns the process with others")
	reply := a.ask(control.SteerRequest{Op: control.Pause, Hold: true, NCCL: &control.NCCL{}})
	require.True(t, reply.OK, reply.Error)
	require.Contains(t, a.ask(control.SteerRequest{Op: control.Align}).Error, "stopped already")
	require.True(t, a.ask(control.SteerRequest{Op: control.Undo}).OK)
	require.Equal(t, "ok", c.line())

	// Pairs: as many as the target says, none of those that it does not name, and all if it does not name the
	// communicator.
	require.Equal(t, []control.Sequence{{Name: name, Ranks: 3, Here: 1, Begun: 1}}, a.align(nil).Sequences)
	require.Equal(t, "ok", c.do("send 1"), "it was never sent to before")
	require.Equal(t, "ok", c.do("send 0"), "itself, which no other counts")
	found = a.align(map[string]uint64{name: 1, sends(1): 2})
	require.False(t, found.Reached)
	require.Equal(t, []control.Sequence{{Name: name, Ranks: 3, Here: 1, Begun: 1},
		{Name: sends(1), Ranks: 3, Here: 1, Begun: 1}}, found.Sequences)
	require.Equal(t, "ok", c.do("send 1"))
	require.True(t, a.align(map[string]uint64{name: 1, sends(1): 2}).Reached)
	say("send 1")
	a.until(sends(1), map[string]uint64{name: 1, sends(1): 2})
	a.align(map[string]uint64{name: 1, sends(1): 3})
	require.Equal(t, "ok", c.line())
	say("send 2")
	a.until(sends(2), map[string]uint64{name: 1, sends(1): 3})
	a.align(map[string]uint64{"77": 5})
	require.Equal(t, "ok", c.line())

	// A group counts as one.
	a.align(map[string]uint64{name: 1, sends(1): 3, sends(2): 1})
	say("group 2")
	a.until(sends(1), map[string]uint64{name: 1, sends(1): 3, sends(2): 1})
	a.align(map[string]uint64{name: 1, sends(1): 4, sends(2): 1})
	require.Equal(t, "ok", c.line())
	found = a.align(map[string]uint64{name: 1, sends(1): 4, sends(2): 1})
	require.False(t, found.Reached)
	require.Equal(t, []control.Sequence{{Name: name, Ranks: 3, Here: 1, Begun: 2},
		{Name: sends(1), Ranks: 3, Here: 1, Begun: 5}, {Name: sends(2), Ranks: 3, Here: 1, Begun: 1}}, found.Sequences)

	// An operation that has begun and is not launched has not arrived yet.
	begun := map[string]uint64{name: 3, sends(1): 5, sends(2): 1}
	a.align(begun)
	c.do("launch 5000")
	require.False(t, a.align(begun).Reached)
	require.Eventually(t, func() bool { return a.align(begun).Reached }, time.Minute, 5*time.Millisecond)

	// A child is not held back, and no thread is once the client has left.
	c.do("work")
	a.until(name, map[string]uint64{name: 3})
	c.do("fork")
	a.Close()
	c.advances("cycles")
	other.until(name, nil)
	require.True(t, other.ask(control.SteerRequest{Op: control.Keep}).OK)
	c.advances("cycles")
	c.do("calm")

	// A communicator that is destroyed while a thread waits, as by a watchdog, is no longer used.
	begun = map[string]uint64{name: other.align(nil).Sequences[0].Begun} // another stop may let one more begin
	c.do("late")
	other.until(name, begun)
	c.do("destroy 1")
	require.True(t, other.ask(control.SteerRequest{Op: control.Undo}).OK)
	require.Eventually(t, func() bool { return c.do("code") == "5" }, time.Minute, time.Millisecond, "ncclInvalidUsage")

	for _, name := range []string{"", "x", "1:2", "1:2:3:4", "1:-1:2", "1:2:x"} {
		reply := other.ask(control.SteerRequest{Op: control.Align, Targets: map[string]uint64{name: 1}})
		require.Contains(t, reply.Error, "is no name of a sequence", name)
	}
	for words, request := range map[string]control.SteerRequest{
		"undo takes no targets": {Op: control.Undo, Targets: map[string]uint64{"1": 1}},
		"align takes no hold":   {Op: control.Align, Hold: true},
		"keep takes no wait":    {Op: control.Keep, Wait: 1},
	} {
		require.Contains(t, other.ask(request).Error, words)
	}
}
