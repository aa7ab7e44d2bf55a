package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/snapshot"
	"tms/internal/snapshot/tree"
)

// startKeeperOf starts a keeper, which kill ends with all of its sets that no process has attached.
func startKeeperOf(t *testing.T) (kill func()) {
	t.Helper()
	keeper := exec.Command(tms, "keeper")
	require.NoError(t, keeper.Start())
	kill = func() {
		_ = keeper.Process.Kill()
		_ = keeper.Wait()
	}
	t.Cleanup(kill)
	t.Setenv("TMS_COMMAND", tms)
	require.Eventually(t, func() bool { // a command would start another
		connection, err := net.Dial("unix", filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms", "keeper.sock"))
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	return kill
}

// startSets is startKeeperOf in directories of the test's own.
func startSets(t *testing.T) (kill func()) {
	t.Helper()
	ownSockets(t)
	t.Setenv("CUDASIM_UNCOUNTED", "1")
	return startKeeperOf(t)
}

func startSetUser(t *testing.T) *steered {
	t.Helper()
	return startPython(t, filepath.Join("testdata", "setuser.py"))
}

func setsKept(t *testing.T) []control.KeptSet {
	t.Helper()
	return parsed[[]control.KeptSet](t, succeeds(t, "kept", "--json"))
}

// setsComeTo waits until the keeper has these sets: versions, with their users, and "named" or "nameless".
func setsComeTo(t *testing.T, wanted ...string) (all []control.KeptSet) {
	t.Helper()
	slices.Sort(wanted)
	require.EventuallyWithT(t, func(t2 *assert.CollectT) {
		all = setsKept(t)
		found := []string{}
		for _, s := range all {
			found = append(found, fmt.Sprintf("version %d, %d users, %s", s.Version, len(s.Users),
				map[bool]string{false: "named", true: "nameless"}[s.Replaced]))
		}
		slices.Sort(found)
		assert.Equal(t2, wanted, found)
	}, time.Minute, 10*time.Millisecond)
	return all
}

// Programs from one snapshot have its set as the keeper has it: the one of before, or one that the first of them makes.
func TestASetStaysASet(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	killKeeper := startSets(t)
	directory := filepath.Join(t.TempDir(), "snapshots")
	maker := startSetUser(t)
	require.Equal(t, "ok", maker.do("publish model 7"))
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("attach model"))
	taken := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json"))
	require.Equal(t, "7 of version 1", s.do("value model"))
	again := parsed[tree.Taken](t, succeeds(t, "snapshot", maker.number(), directory, "--json"))
	require.Positive(t, taken.Written)
	require.Zero(t, again.Written, "two users store a set once")
	require.Equal(t, "7 of version 1", maker.do("value model:made"))
	endAll(t, s.Process.Pid, maker.Process.Pid)

	t.Run("the keeper has it", func(t *testing.T) {
		before := setsKept(t)[0].ID
		_, is := s.restored(t, directory, "--name", taken.Name)
		other, beside := s.restored(t, directory, "--name", taken.Name)
		require.Equal(t, "7 of version 1", other.do("value model"))
		all := setsKept(t)
		require.Len(t, all, 1)
		require.Equal(t, before, all[0].ID)
		require.ElementsMatch(t, append(is.Processes, beside.Processes...), all[0].Users)
	})
	t.Run("it is made", func(t *testing.T) {
		killKeeper()
		startKeeperOf(t)
		require.Empty(t, setsKept(t))
		one, is := s.restored(t, directory, "--name", taken.Name)
		require.Equal(t, "7 of version 1", one.do("value model"))
		other, beside := s.restored(t, directory, "--name", taken.Name)
		require.Equal(t, "7 of version 1", other.do("value model"))
		all := setsKept(t)
		require.Len(t, all, 1)
		require.ElementsMatch(t, append(is.Processes, beside.Processes...), all[0].Users)
		require.False(t, all[0].Replaced)
		succeeds(t, "kept", "verify", "model")
		for _, each := range []*steered{one, other} {
			succeeds(t, "pause", each.number(), "--everything")
			succeeds(t, "resume", each.number())
			require.Equal(t, "7 of version 1", each.do("value model"))
		}
		trainer := startSetUser(t)
		require.Equal(t, "ok", trainer.do("publish model 8"))
		require.Equal(t, "2", one.do("advance model"))
		require.Equal(t, "2", other.do("advance model"))
		require.Equal(t, "8 of version 2", other.do("value model"))
		require.Equal(t, "1", other.do("back model"))
		require.Equal(t, "7 of version 1", other.do("value model"))
		endAll(t, one.Process.Pid)
	})
}

// A set's user has its own version after a restore, also where the keeper has another one by now, and the one before.
func TestVersionsOfASetAreRestored(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	killKeeper := startSets(t)
	directory := filepath.Join(t.TempDir(), "snapshots")
	trainer := startSetUser(t)
	require.Equal(t, "ok", trainer.do("publish model 1"))
	require.Equal(t, "ok", trainer.do("publish other 9"))
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("attach model"))
	require.Equal(t, "ok", s.do("opened other")) // and does not attach it
	require.Equal(t, "ok", trainer.do("publish model 2"))
	require.Equal(t, "2", s.do("advance model")) // and keeps version 1
	endAll(t, trainer.Process.Pid)

	require.Equal(t, "ok", s.do("publish third 3 open"))
	fails(t, exitNo, `the program is writing the set "third"`, "snapshot", s.number(), directory)
	require.Equal(t, "2 of version 2", s.do("value model"))
	require.Equal(t, "ok", s.do("seal third"))
	require.Equal(t, "ok", s.do("close third:made"))
	succeeds(t, "kept", "drop", "third")
	taken := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json", "--stop"))
	awaitEnd(t, taken.Processes[0])
	setsComeTo(t, "version 1, 0 users, named", "version 2, 0 users, named") // of other, and of model

	check := func(s *steered) {
		require.Equal(t, "2 of version 2", s.do("value model"))
		require.Equal(t, "1", s.do("back model"))
		require.Equal(t, "1 of version 1", s.do("value model"))
		require.Equal(t, "ok", s.do("attach other"))
		require.Equal(t, "9 of version 1", s.do("value other"))
	}
	one, _ := s.restored(t, directory)
	setsComeTo(t, "version 1, 1 users, named", "version 1, 1 users, nameless", "version 2, 1 users, named")
	check(one)
	endAll(t, one.Process.Pid)
	setsComeTo(t, "version 1, 0 users, named", "version 2, 0 users, named")

	killKeeper()
	startKeeperOf(t)
	trainer = startSetUser(t)
	require.Equal(t, "ok", trainer.do("publish model 7")) // another program's version 1
	one, is := s.restored(t, directory, "-n", "1")
	setsComeTo(t, "version 1, 1 users, nameless", "version 1, 1 users, named", "version 1, 1 users, named",
		"version 2, 1 users, nameless")
	user := startSetUser(t)
	require.Equal(t, "ok", user.do("attach model"))
	require.Equal(t, "7 of version 1", user.do("value model"))
	check(one)
	require.Equal(t, "ok", trainer.do("publish model 8"))
	require.Equal(t, "3", one.do("advance model")) // within its namespace it reaches the keeper
	require.Equal(t, "8 of version 3", one.do("value model"))
	endAll(t, is.Init)
}

// On each GPU the copies of a program share a set, which the next keeper takes over from them.
func TestCopiesShareASet(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	t.Setenv("CUDASIM_DEVICES", "2")
	killKeeper := startSets(t)
	directory := filepath.Join(t.TempDir(), "snapshots")
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("publish model 5"))
	require.Equal(t, "ok", s.do("attach model"))
	require.Equal(t, "ok", s.do("close model:made"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	first := setsKept(t)
	killKeeper()
	kill := startKeeperOf(t)

	copies, is := s.restored(t, directory, "-n", "3", "--to", "1,0")
	all := setsKept(t)
	require.Len(t, all, 2)
	require.NotEqual(t, all[0].Device, all[1].Device)
	require.NotEqual(t, all[0].Replaced, all[1].Replaced, "the first to be made has the name")
	require.Len(t, append(all[0].Users, all[1].Users...), 3)
	require.Contains(t, []string{all[0].Device, all[1].Device}, first[0].Device)
	succeeds(t, "kept", "verify", "model")
	copies.line() // what the command says of the others
	copies.line()
	for range 6 {
		require.Equal(t, "5 of version 1", copies.do("value model"))
	}
	beside, other := s.restored(t, directory, "-n", "1", "--to", "0")
	require.Equal(t, "5 of version 1", beside.do("value model"))
	kill()
	startKeeperOf(t)
	now := setsKept(t)
	require.Len(t, now, 2)
	for _, set := range now {
		require.Len(t, set.Users, 2, "%v", now)
		require.Contains(t, []uint64{all[0].ID, all[1].ID}, set.ID)
	}
	endAll(t, other.Init, is.Init)
}

// Whatever ends a restore, or stops it, no set is half filled, and another restore has the set.
func TestARestoreOfASetFailsAtEachStep(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // no other test gets a number that this one kills
		return
	}
	killKeeper := startSets(t)
	directory := filepath.Join(t.TempDir(), "snapshots")
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("publish model 5"))
	pid := s.Process.Pid
	for _, what := range []string{"fail", "kill"} {
		steppedRun(t, steppedCommand("sets", what, "snapshot", s.number(), directory))
		require.Eventually(t, func() bool { // the driver may have it until another command asks
			_, _, code := command(t, "resume", s.number())
			return code == 0
		}, time.Minute, 10*time.Millisecond)
		require.Equal(t, "5 of version 1", s.do("value model:made"))
	}
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	for _, step := range []string{"fill a set", "seal a set", "adopt", "give"} {
		for _, what := range []string{"fail", "kill", "stop"} {
			t.Run(step+" "+what, func(t *testing.T) {
				killKeeper()
				killKeeper = startKeeperOf(t)
				c := steppedCommand(step, what, "restore", directory)
				input, open, err := os.Pipe() // the program ends at the end of its input
				require.NoError(t, err)
				defer input.Close()
				defer open.Close()
				c.Stdin = input
				said, cont := steppedRun(t, c)
				if what == "fail" {
					require.Contains(t, said, "the test fails this step")
				}
				if what == "stop" && step != "adopt" && step != "give" {
					fails(t, exitNo, "which is stopped: have it go on", "restore", directory, "-n", "1")
				}
				if what == "stop" {
					require.Contains(t, cont(), "goes on after")
				}
				for _, set := range setsKept(t) { // of a killed maker until the keeper has seen that
					require.True(t, set.Sealed != 0 || what == "kill", "%+v", set)
				}
				again, is := s.restored(t, directory, "-n", "1")
				require.Equal(t, "5 of version 1", again.do("value model:made"))
				_ = syscall.Kill(pid, syscall.SIGKILL)
				awaitEnd(t, pid)
				setsComeTo(t, "version 1, 1 users, named")
				endAll(t, is.Init)
			})
		}
	}
}

// Of two restores at once, one makes the set, and the other waits for it.
func TestTwoRestoresMakeASetOnce(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	killKeeper := startSets(t)
	directory := filepath.Join(t.TempDir(), "snapshots")
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("publish model 5"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	killKeeper()
	startKeeperOf(t)
	inits := make([]int, 2)
	var both sync.WaitGroup
	for i := range inits {
		both.Go(func() {
			_, is := s.restored(t, directory, "-n", "1")
			inits[i] = is.Init
		})
	}
	both.Wait()
	setsComeTo(t, "version 1, 2 users, named")
	endAll(t, inits...)
}

// The processes of a tree have their sets once, in its restore and in copies.
func TestATreeSharesASet(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	killKeeper := startSets(t)
	directory := filepath.Join(t.TempDir(), "snapshots")
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("publish model 5", "child attach model", "child publish other 6"))
	taken := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json", "--stop"))
	require.Len(t, taken.Processes, 2)
	for _, pid := range taken.Processes {
		awaitEnd(t, pid)
	}
	killKeeper()
	startKeeperOf(t)
	for _, arguments := range [][]string{nil, {"-n", "1"}} {
		one, is := s.restored(t, directory, arguments...)
		setsComeTo(t, "version 1, 1 users, named", "version 1, 2 users, named")
		require.Equal(t, "5 of version 1", one.do("value model:made"))
		require.Equal(t, "5 of version 1", one.do("child value model"))
		require.Equal(t, "6 of version 1", one.do("child value other:made"))
		endAll(t, is.Processes...)
	}
}

// Where no keeper runs, and where none has ever run, a copy has one for itself.
func TestACopyStartsAKeeper(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	ownSockets(t)
	t.Setenv("CUDASIM_UNCOUNTED", "1")
	t.Setenv("TMS_COMMAND", tms)
	directory := filepath.Join(t.TempDir(), "snapshots")
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("malloc"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	for _, ran := range []bool{false, true} {
		if ran {
			startKeeperOf(t)()
		}
		one, is := s.restored(t, directory, "-n", "1")
		require.Equal(t, "ok", one.do("publish model 5"))
		require.Equal(t, "5 of version 1", one.do("value model:made"))
		endAll(t, is.Init)
	}
}

// A program that goes on may close what it had open at its snapshot, and the keeper then has it no longer.
func TestASetIsDroppedDuringItsSnapshot(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	startSets(t)
	directory, goes := filepath.Join(t.TempDir(), "snapshots"), filepath.Join(t.TempDir(), "goes")
	trainer, s := startSetUser(t), startSetUser(t)
	require.Equal(t, "ok", trainer.do("publish model 5"))
	require.Equal(t, "ok", s.do("malloc", "opened model"))
	command := steppedCommand("sets", "say", "snapshot", s.number(), directory)
	command.Env = append(command.Env, after+"=.."+goes)
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	require.NoError(t, err)
	defer said.Close()
	command.Stderr = said
	require.NoError(t, command.Start())
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(said.Name())
		return strings.Contains(string(text), "at this step")
	}, time.Minute, time.Millisecond)
	require.Equal(t, "ok", s.do("malloc", "close model")) // the first waits until it goes on
	require.Equal(t, "ok", trainer.do("close model:made"))
	succeeds(t, "kept", "drop", "model")
	require.Empty(t, setsKept(t))
	require.NoError(t, os.WriteFile(goes, nil, 0o600))
	err = command.Wait()
	text, _ := os.ReadFile(said.Name())
	require.NoError(t, err, "%s", text)
	listed := parsed[[]snapshot.Entry](t, succeeds(t, "snapshots", directory, "--json"))
	require.Len(t, listed, 1)
	require.GreaterOrEqual(t, listed[0].Contents, int64(4<<20), "the set's chunks")
	succeeds(t, "snapshots", "check", directory)
}

// A set of another user's keeper is refused, because a restore would find it at no keeper, and the program goes on.
func TestASetOfAnotherUser(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	hermetic.Reachable(t, built(t, "lib", "libtms.so"))
	ownSockets(t)
	require.NoError(t, os.Chmod(os.Getenv("TMPDIR"), 0o777|os.ModeSticky))
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	t.Setenv("CUDASIM_UNCOUNTED", "1")
	script, err := os.ReadFile(filepath.Join("testdata", "setuser.py"))
	require.NoError(t, err)
	anna := &person{t, 61001}
	program := exec.Command(tms, "run", "--", "python3", "-c", string(script))
	program.Env = []string{"TMS_LIBRARY=" + built(t, "lib", "libtms.so"), "CUDASIM_MEMORY=256M", "TMS_COMMAND=" + tms}
	s := startProgram(t, anna.as(program))
	require.Equal(t, "ok", s.do("publish model 5"))
	directory := filepath.Join(t.TempDir(), "snapshots")
	fails(t, exitNo, `has attached the set "model", which user 61001's keeper holds`, "snapshot", s.number(), directory,
		"--stop")
	require.Equal(t, "5 of version 1", s.do("value model:made"))
}

// A thread that attaches a set again and again goes on after snapshots and in a restore, and holds none of them up.
func TestASnapshotAmongAttaches(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	startSets(t)
	directory := filepath.Join(t.TempDir(), "snapshots")
	trainer := startSetUser(t)
	require.Equal(t, "ok", trainer.do("publish model 5"))
	s := startSetUser(t)
	require.Equal(t, "ok", s.do("attach model", "churn model"))
	taken := 0
	for taken < 3 {
		_, words, code := command(t, "snapshot", s.number(), directory)
		if code == 0 {
			taken++
		} else { // it asks the keeper in the moment of the dump
			require.Contains(t, words, "connected to a program outside of its tree by a Unix socket")
		}
		require.Equal(t, "True", s.do("rounds 5"))
	}
	require.Equal(t, "ok", s.do("calm"))
	require.Equal(t, "5 of version 1", s.do("value model"))
	endAll(t, s.Process.Pid, trainer.Process.Pid)
	again, is := s.restored(t, directory)
	require.Equal(t, "True", again.do("rounds 5"))
	require.Regexp(t, "^(ok|tms_kept_attach: .* it was lost with a keeper .*)$", again.do("calm"))
	require.Equal(t, "5 of version 1", again.do("value model"))
	require.Equal(t, "ok", again.do("close model"))
	require.Eventually(t, func() bool { return len(setsKept(t)[0].Users) == 0 }, time.Minute, 10*time.Millisecond)
	endAll(t, is.Processes...)
}
