package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/fleet"
	"tms/internal/group"
)

// sharers are a process and another that has memory of it open.
type sharers struct {
	*mobile
	importer *steered
	written  int // what the exporter has written there last
}

const exporterHas, importerHas = everythingOfIt + 8, 32 // MiB of their own

func startSharers(t *testing.T, environment ...string) *sharers {
	t.Helper()
	s := &sharers{mobile: startMobile(t, environment...), written: 7}
	s.do("lend 8")
	s.lend(environment...)
	return s
}

// lend starts an importer.
func (s *sharers) lend(environment ...string) {
	s.t.Helper()
	s.importer = s.start(s.t, environment...)
	require.Equal(s.t, "0 ", s.importer.do("borrow "+s.do("export")))
	s.share()
}

// share checks that both go on, and that the importer sees what the exporter writes.
func (s *sharers) share() {
	s.t.Helper()
	for _, process := range []*steered{s.steered, s.importer} {
		process.do("check")
		require.Equal(s.t, "0", process.do("stats"))
	}
	require.Equal(s.t, fmt.Sprint("0 ", s.written), s.importer.do("read"), "it has kept what was written")
	s.written = (s.written + 1) % 256
	s.do(fmt.Sprint("write ", s.written))
	require.Equal(s.t, fmt.Sprint("0 ", s.written), s.importer.do("read"))
}

// areOn reports whether both are on a device.
func (s *sharers) areOn(device int) bool {
	s.t.Helper()
	free := [3]int{128, 128, 128}
	free[device] -= exporterHas + importerHas
	return s.free() == free
}

// on checks that both are on a device, and go on.
func (s *sharers) on(device int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return s.do("stats") == "0" && s.importer.do("stats") == "0" && s.areOn(device)
	}, time.Minute, 10*time.Millisecond, "%v", s.free())
	s.share()
}

func (s *sharers) both(what string, more ...string) []string {
	return append([]string{what, s.importer.number(), s.number()}, more...)
}

func TestProcessesThatShareMemoryMoveTogether(t *testing.T) {
	s := startSharers(t, "MASTER_ADDR=here", "MASTER_PORT=29501")
	for _, pair := range [][2]*steered{{s.steered, s.importer}, {s.importer, s.steered}} {
		alone, other := pair[0].number(), pair[1].number()
		words := "it shares memory with process " + other + ", which does not move along: name that, too, or end it; " +
			"all that share memory move together\n"
		fails(t, exitNo, words, "move", alone, "--to", "1", "--dry-run")
		s.refused(words, "move", alone, "--to", "1")
	}
	s.on(0)
	stdout := succeeds(t, "move", "--all", "--from", "0", "--to", "1", "--dry-run")
	require.Equal(t, 2, strings.Count(stdout, ": would move "), stdout)
	stdout = succeeds(t, s.both("move", "--to", "1", "--json")...)
	outcomes := parsed[[]group.Outcome](t, stdout)
	require.Len(t, outcomes, 2)
	for i, o := range outcomes {
		require.True(t, o.OK)
		require.Equal(t, []int{outcomes[1-i].PID}, o.Move.With)
		require.Equal(t, uuidOf(1), o.Move.Legs[0].To)
	}
	require.EqualValues(t, 128-exporterHas-importerHas, // the room beside both, for the contents of both
		(outcomes[0].Move.Legs[0].Room+outcomes[1].Move.Legs[0].Room)>>20)
	require.True(t, s.areOn(1))
	s.share()
	stdout = succeeds(t, "move", "--all", "--from", "1", "--to", "2")
	require.Contains(t, stdout, ", together with "+s.number())
	require.Contains(t, stdout, ", together with "+s.importer.number())
	require.True(t, s.areOn(2))
	s.share()
	s.importer.do("work")
	for i := range hermetic.Often(12, 3) {
		s.importer.advances("cycles")
		succeeds(t, "move", "--job", "here:29501", "--to", fmt.Sprint(i%3))
		s.importer.advances("cycles")
	}
	s.importer.do("calm")
	s.share()
	s.importer.do("return")
	require.Eventually(t, func() bool { // the exporter hears of that a moment later
		return len(parsed[[]fleet.Process](t, succeeds(t, "ps", s.number(), "--json"))[0].Sharers) == 0
	}, time.Minute, 5*time.Millisecond)
	succeeds(t, "move", s.number(), "--to", "1")
	s.do("check")
}

// Whichever call of the driver fails, or wherever the command dies, both go on, in one place.
func TestAFailedMoveOfTwo(t *testing.T) {
	hermetic.Thorough(t)
	s := startSharers(t)
	for _, how := range []string{":999", ":kill"} {
		try := func(call string) bool {
			c := exec.Command(tms, s.both("move", "--to", "1")...)
			c.Env = append(os.Environ(), "CUDASIM_FAIL="+call+how)
			_, stderr, code := ran(t, c)
			if code == 0 {
				succeeds(t, s.both("move", "--to", "0")...)
				return false
			}
			t.Log(call, how, stderr)
			if how == ":kill" {
				_, stderr, code = command(t, s.both("move", "--to", "1")...)
				require.True(t, code == 0 || strings.Contains(stderr, "it is there already: it is on GPU 1"), stderr)
				s.on(1)
				succeeds(t, s.both("move", "--to", "0")...)
			}
			s.on(0)
			return true
		}
		if hermetic.Often(1, 0) > 0 {
			require.GreaterOrEqual(t, eachCall(try), 15)
			continue
		}
		for _, step := range []string{"Checkpoint", "Restore", "Unlock"} { // of the second, once the first has made it
			require.True(t, try("cuCheckpointProcess"+step+":2"))
		}
	}
}

// One of them has no memory where they go, when the other has resumed there or waits.
func TestOneOfTwoCannotResumeThere(t *testing.T) {
	hermetic.Thorough(t)
	s := startSharers(t)
	for _, process := range []*steered{s.steered, s.importer} {
		back := 0
		for nth := 1; back == 0 || hermetic.Full; nth++ { // contents come first, and can wait elsewhere
			fired := process.do("fired")
			process.do(fmt.Sprint("fail cuMemCreate ", nth))
			_, stderr, code := command(t, s.both("move", "--to", "1")...)
			none := process.do("fired") == fired
			process.do("fail")
			t.Log(nth, code, stderr)
			s.on(1 - min(code, 1))
			if code == 0 {
				succeeds(t, s.both("move", "--to", "0")...)
			} else {
				require.Equal(t, 2, strings.Count(stderr, "; it goes on as before\n"), stderr)
				require.NotContains(t, stderr, " 30 s", "no process waits for memory that does not come")
				back++
			}
			if none {
				break
			}
		}
		require.Positive(t, back)
	}
}

// One of them dies before or after all are restored: the other goes on, all of it in one place.
func TestOneOfTwoDies(t *testing.T) {
	hermetic.Thorough(t)
	s := startSharers(t)
	for call, device := range map[string]int{"cuMemUnmap:1": 0, "cuMemImportFromShareableHandle:2": 1} {
		stopped(t, s.importer)
		s.lend("CUDASIM_FAIL=" + call + ":kill")
		_, stderr, code := command(t, s.both("move", "--to", "1")...)
		require.NotZero(t, code, stderr)
		t.Log(call, stderr)
		require.NotContains(t, stderr, "tries again", "nothing is left of it")
		free := [3]int{128, 128, 128}
		there, left := free, free
		there[device] -= exporterHas
		left[0] -= exporterHas // a busy machine may undo the pause first, and the importer dies in that
		require.Eventually(t, func() bool { free = s.free(); return free == there || free == left }, time.Minute,
			10*time.Millisecond, "%v", &free)
		require.Equal(t, "0", s.do("stats"))
		s.do("check")
		if free[1] < 128 {
			succeeds(t, "move", s.number(), "--to", "0")
		}
	}
}

// Both were paused with everything: they come back where they move, or stay paused.
func TestTwoThatArePausedAreMoved(t *testing.T) {
	s := startSharers(t)
	succeeds(t, s.both("pause", "--everything")...)
	require.Equal(t, [3]int{128, 128, 128}, s.free())
	t.Setenv("CUDASIM_FAIL", "cuCheckpointProcessRestore:2:999")
	_, stderr, _ := command(t, s.both("move", "--to", "1")...)
	t.Setenv("CUDASIM_FAIL", "")
	require.Equal(t, 2, strings.Count(stderr, "unknown error (999); it stays paused\n"), stderr)
	require.Equal(t, [3]int{128, 128, 128}, s.free())
	succeeds(t, s.both("move", "--to", "2")...)
	s.on(2)
	succeeds(t, "pause", s.importer.number(), "--everything") // an importer alone may pause
	succeeds(t, s.both("move", "--to", "1")...)
	s.on(1)
}

// Together they do not fit, and one of them is there already.
func TestTwoOnTwoGPUs(t *testing.T) {
	hermetic.Thorough(t)
	s := startSharers(t)
	s.other.do("device 1", "hog")
	words := "GPU 1 has 0 bytes free, and 112.00 MiB are needed there"
	for _, more := range [][]string{{"--to", "1", "--dry-run"}, {"--to", "1"}} {
		fails(t, exitNo, words, s.both("move", more...)...)
	}
	s.other.do("unhog", "device 0")
	s.on(0)
	s.importer.do("return")
	succeeds(t, "move", s.importer.number(), "--to", "1")
	require.Equal(t, "0 ", s.importer.do("borrow "+s.do("export")))
	require.Contains(t, succeeds(t, s.both("move", "--to", "1")...), s.importer.number()+
		": nothing to move: it was paused while processes moved that share memory with it\n")
	s.on(1)
}

// Ranks of NCCL that share memory move as a job: their communicators are suspended together.
func TestRanksAreMovedTogether(t *testing.T) {
	t.Setenv("CUDASIM_DEVICES", "2")
	ranks := startSpread(t, "FAKE_NCCL_EXPORTS=1")
	t.Setenv("CUDASIM_SHARED", filepath.Base(os.Getenv("TMPDIR")))
	t.Setenv("CUDASIM_MEMORY", "128M")
	before := ranks[0].other.count("free")
	fails(t, exitNo, "with 2 ranks is not suspended", "move", ranks[1].number(), "--to", "1")
	for _, where := range []struct{ name, free string }{{"1", "128"}, {"0", fmt.Sprint(before)}} {
		require.Equal(t, 2, strings.Count(spread(t, "move", "--to", where.name), "1 communicator with 4.00 MiB suspended\n"))
		require.Equal(t, where.free, fmt.Sprint(ranks[0].other.count("free")))
		for _, r := range ranks {
			r.do("check")
		}
	}
	ranks.goOnWith(before)
}
