package main

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/group"
)

// startLent starts a program, collects its lines on stderr, and starts a second program that can fill the device.
func startLent(t *testing.T, environment ...string) (lent, other *steered, said *said) {
	t.Helper()
	w := startWhole(t) // for the device
	succeeds(t, "pause", w.number(), "--force")
	said = newSaid()
	command := exec.Command(steeredProgram(t))
	command.Env = append(append(os.Environ(), "LD_PRELOAD="+built(t, "lib", "libtms.so"), "CUDASIM_MEMORY=128M",
		"TMS_CONTROL=1", "TMS_COMMAND="+tms), environment...)
	command.Stderr = said
	return startToListen(t, command), w.other, said
}

func newSaid() *said { return &said{} }

// isActive reports whether a program has all of its memory.
func (s *steered) isActive() bool {
	state, err := status(s.Process.Pid, time.Minute)
	require.NoError(s.t, err)
	return state.Paused() == 0
}

func (s *steered) becomesActive() {
	s.t.Helper()
	require.Eventually(s.t, s.isActive, time.Minute, 5*time.Millisecond)
}

// A colleague gets the memory for an hour, here a second, and the program gets it back by itself. No command is left.
func TestLend(t *testing.T) {
	lent, other, said := startLent(t)
	free := other.count("free")
	begun := time.Now()
	require.Regexp(t, `paused, 32\.00 MiB freed in .*; lent to bert until [0-9:]+\. Then it resumes as soon as there is `+
		`room; tms resume `+lent.number()+` takes the memory back earlier`,
		succeeds(t, "lend", lent.number(), "--force", "--for", "2s", "--to", "bert"))
	by := lent.pausedBy()
	if len(by) > 0 { // else the machine was slow
		require.Equal(t, "bert", by[0].To)
		require.WithinDuration(t, begun.Add(2*time.Second), by[0].End(), time.Minute)
	}
	lent.asks("again") // its own resume waits
	lent.becomesActive()
	require.GreaterOrEqual(t, time.Since(begun), 2*time.Second)
	require.Equal(t, "0 ", lent.line())
	require.Equal(t, "ok", lent.do("check"))
	require.Equal(t, free, other.count("free"))
	require.Empty(t, lent.pausedBy())
	require.NotContains(t, said.String(), "is over, but")
}

// tms lend is killed at any moment: the program goes on, or tms ps names the user that has lent it.
func TestALendWhoseCommandIsKilled(t *testing.T) {
	lent, _, _ := startLent(t, reaching(t)) // the process may begin a pause, and undo it, after the command has died
	const sudoer = "anna"
	t.Setenv("SUDO_USER", sudoer) // where the command runs as root, tms ps names her
	lends, tries := 0, hermetic.Often(200, 12)
	for i := 0; i < tries || lends == 0; i++ {
		cut(t, time.Duration(i)*4*time.Millisecond, os.Kill, "lend", lent.number(), "--for", "1h")
		var by []control.LastingPause
		require.Eventually(t, func() bool {
			by = lent.pausedBy()
			return lent.isActive() == (len(by) == 0)
		}, time.Minute, 5*time.Millisecond)
		if len(by) > 0 {
			lends++
			require.Len(t, by, 1)
			if os.Geteuid() == 0 {
				require.Equal(t, sudoer, by[0].User)
			}
			succeeds(t, "resume", lent.number())
		}
		require.Equal(t, "ok", lent.do("check"))
		require.Empty(t, lent.pausedBy())
	}
}

// Where the colleague still has the memory, no program ends. The lender waits, says so, and takes it when it is free.
func TestALendThatIsOverWithoutRoom(t *testing.T) {
	lent, other, said := startLent(t)
	outcomes := parsed[[]group.Outcome](t, succeeds(t, "lend", lent.number(), "--force", "--for", "1s", "--to", "bert",
		"--json"))
	require.Equal(t, "bert", outcomes[0].To)
	require.WithinDuration(t, time.Now(), time.UnixMicro(int64(outcomes[0].Until*1e6)), time.Minute)
	other.do("hog")
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "is over, but there is no room yet") },
		time.Minute, 5*time.Millisecond)
	require.Regexp(t, `tms: the time of tms lend \(\w+, process \d+, to bert, until [0-9:]+\) is over, but there is no room `+
		`yet, so this program waits until there is \(tms ps --bytes shows who has the memory\): .*MiB are needed`, said)
	require.Regexp(t, lent.number()+`: lent to bert until [0-9:]+, by \w+ \(process \d+\) since [0-9:]+: cache, weights; it `+
		`resumes as soon as there is room \(tms ps --bytes\)`, succeeds(t, "ps", "--no-trunc", lent.number()))
	fails(t, exitNo, "MiB are needed", "resume", lent.number())
	require.Equal(t, "ok", other.do("unhog"))
	lent.becomesActive()
	require.Equal(t, "ok", lent.do("check"))
	require.Eventually(t, func() bool { return len(lent.pausedBy()) == 0 }, time.Minute, 5*time.Millisecond)
	require.Equal(t, 1, strings.Count(said.String(), "is over, but"), "%s", said)
}

// The last command decides: a lend gets another end, becomes a pause without one, and ends with tms resume.
func TestALendThatChanges(t *testing.T) {
	hermetic.Thorough(t)
	lent, _, _ := startLent(t)
	lend := func(more ...string) { succeeds(t, append([]string{"lend", lent.number(), "--force"}, more...)...) }
	lend("--for", "1h")
	require.Regexp(t, lent.number()+`: lent to others until [0-9:]+, by \w+ \(process \d+\) since [0-9:]+; tms resume `+
		lent.number()+` takes the memory back`, succeeds(t, "ps", "--no-trunc", lent.number()))
	lend("--for", "2h", "--to", "bert")
	by := lent.pausedBy()
	require.Len(t, by, 1)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), by[0].End(), time.Minute)

	succeeds(t, "pause", lent.number(), "--force")
	require.Len(t, lent.pausedBy(), 1)
	require.Regexp(t, lent.number()+`: paused by \w+ \(process \d+\) since [0-9:]+; tms resume `+lent.number()+
		` continues it`, succeeds(t, "ps", "--no-trunc", lent.number()))
	succeeds(t, "resume", lent.number(), "--tag", "cache")
	require.Len(t, lent.pausedBy(), 1, "the weights are still paused")
	succeeds(t, "resume", lent.number(), "--tag", "weights")
	require.Empty(t, lent.pausedBy())

	// What the program had paused itself stays so when a lend is over.
	lent.do("pause cache")
	lend("--for", "1s")
	require.Eventually(t, func() bool { return len(lent.pausedBy()) == 0 }, time.Minute, 5*time.Millisecond)
	state, err := status(lent.Process.Pid, time.Minute)
	require.NoError(t, err)
	require.Equal(t, uint64(8<<20), state.Paused())
	require.Equal(t, "0 ", lent.do("again"))
}

// A job is lent as one: all ranks or none, until one moment, from when each takes its memory back by itself.
func TestALendOfAJob(t *testing.T) {
	ownSockets(t)
	const count = 2
	ranks := startJob(t, count, "CUDASIM_FAIL=cuMemUnmap:1:999", "TORCHELASTIC_RUN_ID=lively")
	lend := []string{"lend", "--job", "lively", "--to", "bert", "--timeout", "60", "--for"}
	fails(t, exitNo, "left as it was: process "+ranks[1].number(), append(lend, "1h")...)
	require.True(t, ranks.hold(rankBytes))
	require.Empty(t, slices.Concat(ranks[0].pausedBy(), ranks[1].pausedBy()))

	out := succeeds(t, append(lend, "1h")...)
	require.Regexp(t, `(?m)^\d+: paused, 8\.00 MiB freed in \d+\.\d\d s, 4\.00 MiB without contents; lent to bert until [0-9:]+$`,
		out)
	require.Regexp(t, `(?m)^after [0-9:]+ each resumes as soon as there is room; tms resume --job lively takes the memory `+
		`back earlier$`, out)
	until := ranks[0].pausedBy()[0].Until
	require.Equal(t, until, ranks[1].pausedBy()[0].Until)

	// Another lend of the paused job changes the end for all.
	succeeds(t, append(lend, "2h")...)
	for _, r := range ranks {
		require.Greater(t, r.pausedBy()[0].Until, until+1800)
	}
	succeeds(t, append(lend, "1s")...)
	require.Eventually(t, func() bool { return ranks.hold(rankBytes) }, time.Minute, 5*time.Millisecond)
	require.Empty(t, slices.Concat(ranks[0].pausedBy(), ranks[1].pausedBy()))
	ranks.end()
}

func TestLendsThatAreRefused(t *testing.T) {
	ownSockets(t)
	for words, arguments := range map[string]string{
		"say for how long: --for 1h":                          "lend 1",
		"give a time from 1s to a year":                       "lend 1 --for 0",
		"the user is empty":                                   "lend 1 --for 1h --to=",
		"--to takes a name of at most":                        "lend 1 --for 1h --to " + strings.Repeat("b", 65),
		"there is no such process":                            "lend 99999999 --for 1h",
		"give --all or --job":                                 "lend --for 1h",
		"at the end of a lend no command looks for that room": "lend 1 --for 1h --everything",
		"--to takes a name of at most 64":                     "lend 1 --for 1h --to b\x1b",
	} {
		var out, errors_ bytes.Buffer
		require.NotZero(t, run(strings.Fields(arguments), &out, &errors_), arguments)
		require.Contains(t, errors_.String(), words, arguments)
	}
	earlier := answering(t, "earlier")
	fails(t, exitNo, "its libtms.so is of an earlier version, which lends nothing", "lend", earlier.number(), "--for", "1h")
}
