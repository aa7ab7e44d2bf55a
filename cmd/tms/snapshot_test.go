package main

import (
	"bufio"
	"encoding/json"
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

	"tms/internal/snapshot/criu"
	"tms/internal/snapshot/tree"
)

// needsCRIU skips a test where CRIU cannot run, and returns it.
func needsCRIU(t *testing.T) string {
	t.Helper()
	if own, err := filepath.Abs(filepath.Join("..", "..", "build", "criu", "criu")); err == nil && os.Getenv(criu.Setting) == "" {
		if _, err = os.Stat(own); err == nil {
			t.Setenv(criu.Setting, own)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can run CRIU here")
	}
	program, err := criu.Find(t.Context())
	if err != nil {
		t.Skip(err)
	}
	if text, err := exec.Command(program.Path, "check").CombinedOutput(); err != nil {
		t.Skipf("CRIU cannot run here: %v: %s", err, text)
	}
	return program.Path
}

// restored starts a program again from the newest snapshot, whose standard streams are new ones.
func (s *steered) restored(t *testing.T, directory string, arguments ...string) (*steered, tree.Restored) {
	t.Helper()
	stdin, say, err := os.Pipe()
	require.NoError(t, err)
	answers, stdout, err := os.Pipe()
	require.NoError(t, err)
	command := exec.Command(tms, append([]string{"restore", directory, "--json"}, arguments...)...)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr")) // a pipe would stay open in the program
	require.NoError(t, err)
	defer stderr.Close()
	command.Stdin, command.Stdout, command.Stderr = stdin, stdout, stderr
	require.NoError(t, command.Start())
	require.NoError(t, stdin.Close())
	require.NoError(t, stdout.Close())
	err = command.Wait()
	said, _ := os.ReadFile(stderr.Name())
	require.NoError(t, err, string(said))
	reads := bufio.NewReader(answers)
	line, err := reads.ReadString('\n')
	require.NoError(t, err)
	var is tree.Restored
	require.NoError(t, json.Unmarshal([]byte(line), &is), line)
	process, err := os.FindProcess(is.Processes[0])
	require.NoError(t, err)
	again := &steered{t: t, Cmd: &exec.Cmd{Process: process}, say: say, answers: reads}
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := os.ReadFile(stderr.Name())
			t.Logf("%s", said)
		}
		for _, pid := range is.Processes {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			awaitEnd(t, pid)
		}
	})
	return again, is
}

// awaitEnd waits until a process that is perhaps no child of the test has ended, and is a zombie no longer.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		return syscall.Kill(pid, 0) == syscall.ESRCH
	}, time.Minute, 5*time.Millisecond)
}

func startWarm(t *testing.T, environment ...string) (s *steered, directory string) {
	t.Helper()
	needsCRIU(t)
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	program := copied(t, steeredProgram(t), filepath.Join(t.TempDir(), "steered")) // its own, which a test may change
	s = startSteered(t, program, append(environment, "STEERED_STAYS=1")...)
	return s, filepath.Join(t.TempDir(), "snapshots")
}

// A program goes on after its snapshot, and starts again from it with its contents, as often as one wants.
func TestASnapshotIsRestored(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	s, directory := startWarm(t)
	require.Contains(t, succeeds(t, "snapshot", s.number(), directory, "--force"), "the program stood still for")
	s.do("check")
	require.Contains(t, succeeds(t, "snapshot", s.number(), directory, "--force", "--stop"), "the program has ended")
	require.Error(t, s.Wait()) // killed
	require.Contains(t, fails(t, exitNo, "", "restore", directory, "--name", "none"), "has no snapshot none")
	t.Run("with another driver", func(t *testing.T) {
		t.Setenv("CUDASIM_DRIVER", "581.1")
		require.Contains(t, fails(t, exitNo, "", "restore", directory), "driver 580.159.04, and this machine has 581.1. Only the same version")
	})
	t.Run("with another program or without it", func(t *testing.T) {
		program := s.Path
		text, err := os.ReadFile(program)
		require.NoError(t, err)
		executable(t, program, append(text, 0))
		require.Contains(t, fails(t, exitNo, "", "restore", directory), program+" is another one than at the snapshot")
		require.NoError(t, os.Remove(program))
		require.Contains(t, fails(t, exitNo, "", "restore", directory), program+" is missing")
		executable(t, program, text)
		require.Regexp(t, program+"  build-id:[0-9a-f]{40}", succeeds(t, "snapshots", directory, "--needs"))
	})
	for range 2 {
		var is tree.Restored
		s, is = s.restored(t, directory)
		s.do("check")
		t.Run("beside itself", func(t *testing.T) {
			other, beside := s.restored(t, directory)
			require.Equal(t, is.Processes, beside.Within)
			other.do("check")
			endAll(t, beside.Init)
		})
		succeeds(t, "pause", s.number(), "--force")
		succeeds(t, "resume", s.number())
		s.do("check")
		require.NoError(t, s.Process.Kill())
		awaitEnd(t, is.Processes[0])
	}
}

// An unmodified training is killed, and goes on from its last snapshot to the same numbers, bit for bit.
func TestATrainingGoesOnFromItsSnapshots(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // its number is free at the restore
		return
	}
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	program, folder := fixture(t, "training"), t.TempDir()
	directory, losses := filepath.Join(folder, "snapshots"), filepath.Join(folder, "losses")
	start := func(path, steps, pause string) *exec.Cmd {
		c := exec.Command(tms, "run", "--", program, path, steps, pause)
		c.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "LD_PRELOAD=", "CUDASIM_MEMORY=256M")
		require.NoError(t, c.Start()) // its streams are files: a restored one would keep the pipe of tms restore open
		return c
	}
	last := func() (lines []string) {
		text, _ := os.ReadFile(losses)
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	training := start(losses, "1000000000", "1000")
	pid := training.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL); awaitEnd(t, pid) })
	require.Eventually(t, func() bool { return len(last()) > 10 }, time.Minute, time.Millisecond)
	other := exec.Command("sleep", "infinity")
	require.NoError(t, other.Start())
	require.Contains(t, fails(t, exitNo, "", "snapshot", strconv.Itoa(other.Process.Pid), directory, "--every", "1s"),
		"start it by tms run")
	require.NoError(t, other.Process.Kill())
	require.Error(t, other.Wait())
	every := exec.Command(tms, "snapshot", strconv.Itoa(pid), directory, "--every", "1s", "--keep", "2")
	var said strings.Builder
	every.Stdout, every.Stderr = &said, &said
	require.NoError(t, every.Start())
	names := func() (names []string) {
		found, _ := filepath.Glob(filepath.Join(directory, "*Z-"+strconv.Itoa(pid)))
		return found
	}
	require.Eventually(t, func() bool { return len(names()) > 0 }, time.Minute, time.Millisecond)
	first := names()[0]
	require.Eventually(t, func() bool { return !slices.Contains(names(), first) }, time.Minute, time.Millisecond, "it is pruned")
	before := len(last())
	require.Eventually(t, func() bool { return len(last()) > before }, time.Minute, time.Millisecond)
	require.NoError(t, training.Process.Kill())
	require.NoError(t, every.Wait(), said.String()) // the training is a zombie still
	require.Error(t, training.Wait())
	require.Contains(t, said.String(), "has ended; tms restore "+directory)
	require.Contains(t, fails(t, exitNo, "", "snapshot", strconv.Itoa(pid), directory, "--every", "1s"), "there is no such process")
	require.LessOrEqual(t, len(names()), 2)

	before = len(last())
	succeeds(t, "restore", directory)
	require.Eventually(t, func() bool { return len(last()) > before+10 }, time.Minute, time.Millisecond, "it goes on")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	awaitEnd(t, pid)
	all := last()
	all = all[:len(all)-1] // the last one may be incomplete
	most := 0
	for _, line := range all {
		step, err := strconv.Atoi(strings.Fields(line)[0])
		require.NoError(t, err)
		most = max(most, step)
	}
	require.Greater(t, len(all), most+1, "steps are repeated from the snapshot on")
	undisturbed := filepath.Join(folder, "undisturbed")
	require.NoError(t, start(undisturbed, strconv.Itoa(most+1), "0").Wait())
	text, err := os.ReadFile(undisturbed)
	require.NoError(t, err)
	expected := strings.Split(string(text), "\n")
	for _, line := range all {
		step, _ := strconv.Atoi(strings.Fields(line)[0])
		require.Equal(t, expected[step], line)
	}
}
