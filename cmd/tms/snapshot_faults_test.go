package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
	"tms/internal/snapshot/tree"
)

// At a step (see failpoint), a command of the test's program does what "fail", "kill" or "stop" says, once.
const (
	atStep = "TESTS_STEP"
	does   = "TESTS_DOES"
	after  = "TESTS_AFTER" // waits for a process of this number first
)

// steppedCommand is tms in this test's program, with a failpoint.
func steppedCommand(step, what string, arguments ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], arguments...)
	c.Env = append(os.Environ(), atStep+"=snapshot "+step, does+"="+what)
	return c
}

func actAtStep() {
	step, what := os.Getenv(atStep), os.Getenv(does)
	var done atomic.Bool
	if what == "stop" { // which a busy machine does, too, for a second
		snapshotLease = 4 * time.Second
	}
	failpoint.Set(func(call string) error {
		if call != step || done.Swap(true) {
			return nil
		}
		if what == "say" {
			fmt.Fprintln(os.Stderr, "the command is at this step")
		}
		for until := time.Now().Add(time.Minute); os.Getenv(after) != "" && time.Now().Before(until); {
			if _, err := os.Stat("/proc/" + os.Getenv(after)); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		switch what {
		case "fail":
			return errors.New("the test fails this step")
		case "kill":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "stop":
			runtime.LockOSThread() // this thread takes the signal, so it does nothing before it is stopped
			_ = unix.Tgkill(os.Getpid(), unix.Gettid(), syscall.SIGSTOP)
		}
		return nil
	})
	_ = os.Unsetenv(atStep)
}

// steppedRun runs such a command until it has acted, and returns what it has said. After a stop, cont has it go on.
func steppedRun(t *testing.T, c *exec.Cmd) (said string, cont func() string) {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "said")) // a pipe would stay open in a restored program
	require.NoError(t, err)
	defer output.Close()
	c.Stdout, c.Stderr = output, output
	require.NoError(t, c.Start())
	text := func() string {
		said, err := os.ReadFile(output.Name())
		require.NoError(t, err)
		return string(said)
	}
	var status syscall.WaitStatus
	_, err = syscall.Wait4(c.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	return text(), func() string {
		require.True(t, status.Stopped(), "%#x %s", status, text())
		require.NoError(t, c.Process.Signal(syscall.SIGCONT))
		_, err = syscall.Wait4(c.Process.Pid, &status, 0, nil)
		require.NoError(t, err)
		return text()
	}
}

func complete(t *testing.T, directory string) (names []string) {
	t.Helper()
	d, err := snapshot.Open(directory)
	require.NoError(t, err)
	list, err := d.List()
	require.NoError(t, err)
	for _, entry := range list {
		if entry.Problem == "" {
			names = append(names, entry.Name)
		}
	}
	return names
}

// untraced waits until no CRIU has the process any longer.
func (s *steered) untraced(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Process.Pid))
		return err == nil && bytes.Contains(status, []byte("TracerPid:\t0\n"))
	}, time.Minute, time.Millisecond)
}

// threadsOf says where the threads of a process are.
func threadsOf(pid int) (all string) {
	folders, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, folder := range folders {
		all += folder
		for _, file := range []string{"comm", "status", "syscall", "stack"} {
			text, _ := os.ReadFile(filepath.Join(folder, file))
			if _, state, is := strings.Cut(string(text), "State:"); is {
				text = []byte(strings.Join(strings.Split(state, "\n")[:5], " ") + "\n")
			}
			all += " " + string(text)
		}
	}
	return all
}

// resumes resumes it as soon as it answers.
func (s *steered) resumes(t *testing.T) {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, words, code := command(t, "resume", s.number())
		if code == 0 {
			return
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Process.Pid))
		waits := err == nil && !bytes.Contains(status, []byte("zombie")) && time.Now().Before(until)
		require.True(t, waits, "%s%s%s%s", out, words, status, threadsOf(s.Process.Pid))
	}
}

// Whatever ends or stops the command, at whichever step, the program goes on with its contents, and what is not complete
// is not restored.
func TestASnapshotFailsAtEachStep(t *testing.T) {
	hermetic.Thorough(t)
	needsCRIU(t)
	if !alone(t) { // no other test gets a number that this one kills
		return
	}
	s, _ := startWarm(t)
	for _, stop := range [][]string{{}, {"--stop"}} {
		for _, step := range []string{"park", "dump", "contents", "commit", "pages", "images", "end"} {
			for _, what := range []string{"fail", "kill", "stop"} {
				if step == "end" && len(stop) == 0 || step == "park" && what == "stop" { // before anything has been asked for
					continue
				}
				t.Run(strings.Join(append(stop, step, what), " "), func(t *testing.T) {
					directory := filepath.Join(t.TempDir(), "snapshots")
					c := steppedCommand(step, what, append([]string{"snapshot", s.number(), directory, "--force"}, stop...)...)
					said, cont := steppedRun(t, c)
					if what != "fail" { // the driver may have it
						s.resumes(t)
					}
					s.do("check") // that it goes on
					if what == "stop" {
						said = cont()
					}
					s.untraced(t)
					s.do("check")
					if what == "fail" {
						require.Contains(t, said, "the test fails this step")
					}
					names := complete(t, directory)
					if what == "stop" && step != "dump" || step == "end" {
						require.LessOrEqual(t, len(names), 1)
						if what == "fail" || len(stop) > 0 && len(names) > 0 && what == "stop" {
							require.Contains(t, said, "the snapshot is complete, but the program could not be ended")
						}
						return
					}
					require.Empty(t, names, said)
					require.Contains(t, fails(t, exitNo, "", "restore", directory), "has no snapshot")
				})
			}
		}
	}
	t.Run("what was paused stays paused", func(t *testing.T) {
		succeeds(t, "pause", s.number(), "--tag", "weights", "--force")
		for _, step := range []string{"dump", "contents"} {
			directory := filepath.Join(t.TempDir(), "snapshots")
			_, _ = steppedRun(t, steppedCommand(step, "fail", "snapshot", s.number(), directory, "--force"))
			require.Regexp(t, `weights .* paused`, succeeds(t, "ps", s.number()))
			require.Regexp(t, `cache .* active`, succeeds(t, "ps", s.number()))
		}
		succeeds(t, "resume", s.number())
		s.do("check")
	})
	directory := filepath.Join(t.TempDir(), "snapshots")
	succeeds(t, "snapshot", s.number(), directory, "--force", "--stop")
	require.Error(t, s.Wait())
	s, _ = s.restored(t, directory)
	s.do("check")
}

// Whatever ends or stops a restore, nothing of the program is here, or it waits and says for what.
func TestARestoreFailsAtEachStep(t *testing.T) {
	hermetic.Thorough(t)
	needsCRIU(t)
	if !alone(t) { // no other test gets a number that this one kills
		return
	}
	s, directory := startWarm(t)
	succeeds(t, "snapshot", s.number(), directory, "--force", "--stop")
	require.Error(t, s.Wait())
	pid, number := s.Process.Pid, s.number()
	listed := func(words string) {
		t.Helper()
		require.Eventually(t, func() bool {
			out, _, code := command(t, "ps", number, "--no-trunc")
			return code == 0 && strings.Contains(out, words)
		}, time.Minute, 10*time.Millisecond)
	}
	for _, step := range []string{"pages", "copy", "give", "resume"} {
		for _, what := range []string{"fail", "kill", "stop"} {
			t.Run(step+" "+what, func(t *testing.T) {
				c := steppedCommand(step, what, "restore", directory)
				input, open, err := os.Pipe() // the program ends at the end of its input
				require.NoError(t, err)
				defer input.Close()
				defer open.Close()
				c.Stdin = input
				if step == "copy" { // which is beside CRIU
					c.Env = append(c.Env, after+"="+number)
				}
				said, cont := steppedRun(t, c)
				switch {
				case what == "stop":
					said = cont()
					require.Contains(t, said, "goes on after")
				case step == "resume":
					if what == "fail" {
						require.Contains(t, said, "the program is here and paused")
					}
					listed("tms resume " + number + " continues it")
					succeeds(t, "resume", number)
				case what == "fail":
					require.Contains(t, said, "the test fails this step")
				case step == "pages": // before CRIU
					require.Equal(t, syscall.ESRCH, syscall.Kill(pid, 0))
					return
				default:
					listed("it was restored from that snapshot, and its tms restore has to give it contents (files: ")
					require.Contains(t, fails(t, exitNo, "", "resume", number), "run tms restore again")
				}
				if what != "fail" || step == "resume" {
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), said)
				}
				awaitEnd(t, pid)
			})
		}
	}
	s, _ = s.restored(t, directory)
	s.do("check")
}

// A snapshot that lacks something, or has a wrong bit, is refused with words, and nothing of it stays here.
func TestADamagedSnapshotIsNotRestored(t *testing.T) {
	hermetic.Thorough(t)
	needsCRIU(t)
	if !alone(t) { // no other test gets a number that this one kills
		return
	}
	s, directory := startWarm(t)
	succeeds(t, "snapshot", s.number(), directory, "--force", "--stop")
	require.Error(t, s.Wait())
	pid := s.Process.Pid
	name := complete(t, directory)[0]
	find := func(pattern string) string {
		found, err := filepath.Glob(filepath.Join(directory, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found)
		return found[0]
	}
	d, err := snapshot.Open(directory)
	require.NoError(t, err)
	open, err := d.Load(name)
	require.NoError(t, err)
	open.Close()
	sum := func(of snapshot.Content) string {
		first := slices.IndexFunc(of.Blocks, func(sum snapshot.Sum) bool { return sum != snapshot.Sum{} })
		return of.Blocks[first].String()
	}
	for what, path := range map[string]string{
		"block":                find("blocks/*/" + sum(open.Manifest.Processes[0].Contents[0].Content)),
		"block of host memory": find("blocks/packs/*"),
		"image":                find(name + "/images/core-*.img"),
		"manifest":             find(name + "/snapshot.json"),
	} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		wrong := bytes.Clone(text)
		wrong[len(wrong)/2] ^= 1
		for how, spoil := range map[string]func() error{
			"lacks":     func() error { return os.Remove(path) },
			"has wrong": func() error { return os.WriteFile(path, wrong, 0o600) },
		} {
			t.Run(how+" "+what, func(t *testing.T) {
				require.NoError(t, spoil())
				said := fails(t, exitNo, "", "restore", directory)
				if what == "manifest" && how == "lacks" {
					require.Contains(t, said, "no such file")
				} else {
					require.Contains(t, said, path)
				}
				awaitEnd(t, pid)
				require.NoError(t, os.WriteFile(path, text, 0o600))
			})
		}
	}
	s, _ = s.restored(t, directory)
	s.do("check")
}

// A disk that becomes full leaves no snapshot, and the program goes on.
func TestASnapshotOnAFullDisk(t *testing.T) {
	hermetic.Thorough(t)
	needsCRIU(t)
	if !alone(t) { // no other test gets a number that this one kills
		return
	}
	s, directory := startWarm(t)
	taken := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--force", "--json"))
	memory := taken.Memory.Written
	for what, size := range map[string]int64{"blocks": taken.Written / 2, "host memory": taken.Written + memory/2,
		"images": taken.Written + memory + taken.Images/2, "CRIU's own files": memory / 2} {
		t.Run(what, func(t *testing.T) {
			snapshotInto := func(directory string, more []string) string {
				return fails(t, exitNo, "", append([]string{"snapshot", s.number(), directory, "--force"}, more...)...)
			}
			if what == "CRIU's own files" { // on the disk, because memory is short
				snapshotInto = func(directory string, more []string) string {
					said, _ := steppedRun(t, steppedCommand("room", "fail", append([]string{"snapshot", s.number(), directory,
						"--force"}, more...)...))
					return said
				}
			}
			small := t.TempDir()
			if err := syscall.Mount("none", small, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { require.NoError(t, syscall.Unmount(small, syscall.MNT_DETACH)) })
			for _, more := range [][]string{{}, {"--stop"}} {
				said := snapshotInto(filepath.Join(small, "d"), more)
				require.Regexp(t, "disk is full|no space left", said)
				require.Contains(t, said, "the program goes on")
				s.do("check")
				require.Empty(t, complete(t, filepath.Join(small, "d")))
			}
		})
	}
}

// Two snapshots at once into one directory are two snapshots.
func TestTwoSnapshotsAtOnce(t *testing.T) {
	hermetic.Thorough(t)
	needsCRIU(t)
	if !alone(t) { // no other test gets a number that this one kills
		return
	}
	one, directory := startWarm(t)
	other := startSteered(t, steeredProgram(t), "STEERED_STAYS=1")
	var commands []*exec.Cmd
	for _, s := range []*steered{one, other} {
		c := exec.Command(tms, "snapshot", s.number(), directory, "--force", "--stop")
		c.Stderr = os.Stderr
		require.NoError(t, c.Start())
		commands = append(commands, c)
	}
	for _, c := range commands {
		require.NoError(t, c.Wait())
	}
	require.Error(t, one.Wait())
	require.Error(t, other.Wait())
	for _, s := range []*steered{one, other} {
		name := filepath.Base(filepath.Dir(glob(t, filepath.Join(directory, "*-"+s.number(), "images"))))
		again, _ := s.restored(t, directory, "--name", name)
		again.do("check")
	}
}

func glob(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// A snapshot and a restore that wait for another's turn say so. The program goes on during the wait, which can be
// interrupted. What it has loaded during the wait is in the snapshot's list.
func TestAWaitForAnotherSnapshotIsSaid(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	s, directory := startWarm(t)
	folder, err := os.Open("/dev/shm")
	require.NoError(t, err)
	defer folder.Close()
	lock := func(how int) { require.NoError(t, unix.Flock(int(folder.Fd()), how)) }
	waits := func(arguments ...string) (c *exec.Cmd, said func() string) {
		output, err := os.Create(filepath.Join(t.TempDir(), "said"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = output.Close() })
		c = exec.Command(tms, arguments...)
		c.Stderr = output
		require.NoError(t, c.Start())
		said = func() string {
			text, err := os.ReadFile(output.Name())
			require.NoError(t, err)
			return string(text)
		}
		require.Eventually(t, func() bool {
			return said() == "tms: another snapshot or restore has /dev/shm locked; waiting until it has ended\n"
		}, time.Minute, time.Millisecond, said())
		return c, said
	}
	lock(unix.LOCK_EX)
	interrupted, _ := waits("snapshot", s.number(), directory, "--force")
	require.Regexp(t, `weights .* active`, succeeds(t, "ps", s.number()))
	require.NoError(t, interrupted.Process.Signal(os.Interrupt))
	require.Error(t, interrupted.Wait())
	require.Empty(t, complete(t, directory))
	waiting, said := waits("snapshot", s.number(), directory, "--force", "--stop")
	s.do("check")
	late := library(t, "liblate.so", "int late = 1;")
	s.do("load " + late)
	lock(unix.LOCK_UN)
	require.NoError(t, waiting.Wait(), said())
	require.Contains(t, succeeds(t, "snapshots", directory, "--needs"), late)
	require.Error(t, s.Wait())
	lock(unix.LOCK_EX)
	interrupted, _ = waits("restore", directory)
	require.NoError(t, interrupted.Process.Signal(os.Interrupt))
	require.Error(t, interrupted.Wait())
	lock(unix.LOCK_UN)
	again, _ := s.restored(t, directory)
	again.do("check")
}

// Another version may have the path of a command, such as tms serve, that restores copies.
func TestACommandThatWasReplacedRestoresCopies(t *testing.T) {
	s, directory := startWarm(t)
	succeeds(t, "snapshot", s.number(), directory, "--force", "--stop")
	require.Error(t, s.Wait())
	restore := steppedCommand("pages", "stop", "restore", directory, "-n", "1", "--json")
	restore.Path = copied(t, restore.Path, filepath.Join(t.TempDir(), "tms"))
	input, open, err := os.Pipe() // the program ends at the end of its input
	require.NoError(t, err)
	defer input.Close()
	defer open.Close()
	restore.Stdin = input
	_, cont := steppedRun(t, restore)
	require.NoError(t, os.Remove(restore.Path))
	executable(t, restore.Path, []byte("#!/bin/sh\necho \"failed: this is another version\" >&3\n"))
	is := parsed[tree.Restored](t, cont())
	require.Empty(t, is.Error)
	endAll(t, is.Init)
}

// remapsOf returns CRIU's names in /dev/shm that the newest snapshot of a directory has.
func remapsOf(t *testing.T, directory string) (names []string) {
	t.Helper()
	d, err := snapshot.Open(directory)
	require.NoError(t, err)
	open, err := d.Load("")
	require.NoError(t, err)
	defer open.Close()
	for _, shared := range open.Manifest.Shared {
		if strings.HasPrefix(shared.Name, "link_remap.") {
			names = append(names, filepath.Join("/dev/shm", shared.Name))
		}
	}
	require.NotEmpty(t, names)
	return names
}

// A snapshot that is killed after CRIU has ended the program leaves CRIU's names. The next command removes these, because
// they are listed, and no other of such a name.
func TestNamesOfAKilledDumpGo(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	ownSockets(t)
	s := startPython(t, filepath.Join("testdata", "tree.py"))
	require.Equal(t, "ok", s.do("check"))
	directory := filepath.Join(t.TempDir(), "snapshots")
	said, _ := steppedRun(t, steppedCommand("drop", "kill", "snapshot", s.number(), directory, "--stop"))
	require.Error(t, s.Wait())
	names := remapsOf(t, directory)
	for _, name := range names {
		require.FileExists(t, name, said)
	}
	taken := names[0] // what tms has not made
	require.NoError(t, os.Remove(taken))
	require.NoError(t, os.WriteFile(taken, []byte("another's"), 0o600))
	t.Cleanup(func() { _ = os.Remove(taken) })

	other := startSteered(t, copied(t, steeredProgram(t), filepath.Join(t.TempDir(), "steered")), "STEERED_STAYS=1")
	succeeds(t, "snapshot", other.number(), filepath.Join(t.TempDir(), "snapshots"), "--force")
	other.do("check")
	for _, name := range names[1:] {
		require.NoFileExists(t, name)
	}
	require.NoFileExists(t, fmt.Sprint("/dev/shm/tms-remaps-", os.Geteuid()))
	text, err := os.ReadFile(taken)
	require.NoError(t, err)
	require.Equal(t, "another's", string(text))

	require.NoError(t, os.Remove(taken))
	again, _ := s.restored(t, directory)
	require.Equal(t, "ok", again.do("check"))
	require.NoFileExists(t, fmt.Sprint("/dev/shm/tms-remaps-", os.Geteuid()))
}

// CRIU's names in /dev/shm are gone before another snapshot or restore, which may have the same, gets its turn.
func TestNamesOfADumpGoWithItsTurn(t *testing.T) {
	criuPath := needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	ownSockets(t)
	s := startPython(t, filepath.Join("testdata", "tree.py"))
	require.Equal(t, "ok", s.do("check"))
	directory := filepath.Join(t.TempDir(), "snapshots")
	fails := filepath.Join(t.TempDir(), "criu")
	executable(t, fails, fmt.Appendf(nil, "#!/bin/sh\n[ \"$1\" != restore ] && exec %q \"$@\"\n", criuPath))
	for _, arguments := range [][]string{{"snapshot", s.number(), directory, "--stop"}, {"restore", directory}} {
		c := steppedCommand("unlock", "stop", arguments...)
		c.Env = append(c.Env, criu.Setting+"="+fails)
		said, cont := steppedRun(t, c)
		for _, name := range remapsOf(t, directory) {
			require.NoFileExists(t, name, said)
		}
		cont()
		if arguments[0] == "snapshot" {
			require.Error(t, s.Wait())
		}
	}
}
