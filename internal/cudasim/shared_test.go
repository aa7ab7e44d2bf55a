package cudasim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
)

const mib = 1 << 20

// sharer is a process of testdata/shared.c.
type sharer struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

// group starts sharers of one name.
type group struct {
	t            *testing.T
	binary, name string
}

func newGroup(t *testing.T) group {
	name := fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), os.Getpid())
	if len(name) > 64 {
		name = name[len(name)-64:]
	}
	t.Cleanup(func() { require.Empty(t, leftovers(t, name), "the last to leave removes the file") })
	return group{t, compile(t, "shared", 0), name}
}

func newGroupNamed(g group, name string) group { return group{g.t, g.binary, name + "-" + g.name} }

// leftovers returns the files of that name in this user's folder.
func leftovers(t *testing.T, name string) []string {
	var all []string
	for _, system := range []string{"/dev/shm", "/tmp"} {
		found, err := filepath.Glob(fmt.Sprintf("%s/cudasim-%d*/%s.*", system, os.Geteuid(), name))
		require.NoError(t, err)
		all = append(all, found...)
	}
	return all
}

func (g group) process(env ...string) *sharer {
	g.t.Helper()
	cmd := exec.Command(g.binary)
	cmd.Env = append(append(environment(g.t), "CUDASIM_SHARED="+g.name, "CUDASIM_MEMORY=64M"), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(g.t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(g.t, err)
	require.NoError(g.t, cmd.Start())
	s := &sharer{g.t, cmd, stdin, bufio.NewReader(stdout)}
	g.t.Cleanup(func() { s.end() })
	return s
}

// obeys runs a process to its end that follows these lines, perhaps as another user: then it is readable.
func obeys(binary string, user int, lines string, env ...string) (out, complaints string, err error) {
	cmd := exec.Command(binary)
	if user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
		env = append(env, "LD_LIBRARY_PATH="+filepath.Dir(binary))
	}
	cmd.Env, cmd.Stdin = env, strings.NewReader(lines)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// start starts a process that has called cuInit.
func (g group) start(env ...string) *sharer {
	g.t.Helper()
	s := g.process(env...)
	require.Equal(g.t, "0", s.do("start", 0))
	return s
}

func (s *sharer) send(command string, number int) {
	_, err := fmt.Fprintf(s.stdin, "%s %d\n", command, number)
	require.NoError(s.t, err)
}

func (s *sharer) answer() string {
	s.t.Helper()
	line, err := s.stdout.ReadString('\n')
	require.NoError(s.t, err)
	return strings.TrimSpace(line)
}

func (s *sharer) do(command string, number int) string {
	s.t.Helper()
	s.send(command, number)
	return s.answer()
}

func (s *sharer) requireFree(mebibytes int) {
	s.t.Helper()
	require.Equal(s.t, fmt.Sprintf("%d of %d", mebibytes*mib, 64*mib), s.do("info", 0))
}

// end lets the process exit; kill does not.
func (s *sharer) end() {
	s.stdin.Close()
	s.cmd.Wait()
}

func (s *sharer) kill() {
	require.NoError(s.t, s.cmd.Process.Kill())
	s.cmd.Wait()
}

func TestProcessesShareADevice(t *testing.T) {
	g := newGroup(t)
	one, other := g.start(), g.start()
	one.does(48*mib, "allocate")
	other.requireFree(16)
	require.Equal(t, "2", other.do("allocate", 16*mib+1))
	other.does(16*mib, "allocate")
	one.requireFree(0)
	require.Equal(t, "2", one.do("allocate", 1))
	one.does(0, "free")
	other.requireFree(48)
	other.does(0, "reset") // frees what it had, and does not share until cuInit
	one.requireFree(64)
	other.does(0, "start")
	other.does(64*mib, "allocate")
	one.requireFree(0)
	other.end()
	one.requireFree(64)
}

func TestOtherNamesAndNoNameShareNothing(t *testing.T) {
	g := newGroup(t)
	one, other, alone := g.start(), newGroupNamed(g, "another").start(), g.start("CUDASIM_SHARED=")
	one.does(64*mib, "allocate")
	other.requireFree(64)
	alone.requireFree(64)
	alone.does(64*mib, "allocate")
	other.requireFree(64)
}

func TestTheFirstSaysHowMuchMemoryThereIs(t *testing.T) {
	g := newGroup(t)
	one := g.start()
	out, complaints, err := obeys(g.binary, 0, "start 0\ninfo 0\n",
		append(environment(t), "CUDASIM_SHARED="+g.name, "CUDASIM_MEMORY=32M")...)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("0\n%d of %d\n", 64*mib, 64*mib), out)
	require.Equal(t, fmt.Sprintf("cudasim: devices have 64 MiB, not 32 MiB, as the first process of CUDASIM_SHARED=%s "+
		"wanted; another CUDASIM_SHARED has devices of its own\n", g.name), complaints)
	one.end()
	require.Equal(t, fmt.Sprintf("%d of %d", 32*mib, 32*mib), g.start("CUDASIM_MEMORY=32M").do("info", 0)) // all left
}

func TestANameThatCannotBeOne(t *testing.T) {
	g := newGroup(t)
	for _, name := range []string{"a/b", strings.Repeat("x", 65)} {
		stderr := run(t, compile(t, "vmm", 0), "unmapped_memory_faults", "CUDASIM_SHARED="+name)
		require.Equal(t, "cudasim: CUDASIM_SHARED="+name+
			" is not a name of up to 64 characters without /; sharing with no process\n", stderr)
	}
	longest := newGroupNamed(g, strings.Repeat("x", 64-len(g.name)-1))
	one, other := longest.start(), longest.start()
	one.does(mib, "allocate")
	other.requireFree(63)
}

func TestWhatAKilledProcessHeldIsFree(t *testing.T) {
	g := newGroup(t)
	survivor := g.start()
	for _, waitedFor := range []bool{true, false} {
		victim := g.start()
		victim.does(60*mib, "allocate")
		require.Equal(t, "2", survivor.do("allocate", 8*mib))
		require.NoError(t, victim.cmd.Process.Kill())
		if waitedFor {
			victim.cmd.Wait()
		} else {
			waitForZombie(t, victim.cmd.Process.Pid)
		}
		survivor.does(64*mib, "allocate") // no process looked at the free memory first
		survivor.does(0, "free")
		survivor.requireFree(64)
	}
}

func waitForZombie(t *testing.T, pid int) {
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(text), ") Z ")
	}, time.Minute, time.Millisecond)
}

// Exec keeps a process's number and start time, and frees what it held.
func TestWhatAProcessHeldBeforeExecIsFree(t *testing.T) {
	g := newGroup(t)
	survivor, executes := g.start(), g.start()
	executes.does(60*mib, "allocate")
	executes.send("exec", 0)
	require.Equal(t, "3", executes.do("allocate", mib)) // the new program answers, which has to call cuInit
	survivor.requireFree(64)
	executes.does(0, "start")
	executes.does(mib, "allocate")
	survivor.requireFree(63)
}

func TestChildrenHoldNothing(t *testing.T) {
	g := newGroup(t)
	survivor, parent := g.start(), g.start()
	parent.does(60*mib, "allocate")
	// A child that ends leaves the parent's memory counted.
	parent.do("fork", 0)
	require.Equal(t, "1", parent.do("wait", 0))
	survivor.requireFree(4)
	// A child that lives on does not keep what the parent held.
	child, err := strconv.Atoi(parent.do("fork", 60_000))
	require.NoError(t, err)
	defer syscall.Kill(child, syscall.SIGKILL)
	parent.kill()
	survivor.requireFree(64)
	require.NoError(t, syscall.Kill(child, 0))
	// A child forked before cuInit is a process like others.
	unstarted := g.process()
	unstarted.do("fork", 0)
	unstarted.does(0, "start")
	unstarted.does(4*mib, "allocate")
	survivor.requireFree(60)
}

// readable returns a copy of a program that other users can reach, with the simulator beside it: the checkout may be in
// root's home directory.
func readable(t *testing.T, binary string) string {
	folder := t.TempDir()
	for from, name := range map[string]string{binary: "program", filepath.Join(simDir(t), "libcuda.so.1"): "libcuda.so.1"} {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), content, 0o755))
	}
	binary = filepath.Join(folder, "program")
	for path := filepath.Dir(binary); path != filepath.Clean(os.TempDir()) && path != "/"; path = filepath.Dir(path) {
		require.NoError(t, os.Chmod(path, 0o755))
	}
	return binary
}

// A folder that another user has made beforehand is not trusted, as root's in a user namespace may be. Another one is
// taken, unless that is another user's, too.
func TestTheFolderOfAnotherUser(t *testing.T) {
	hermetic.OtherUsers(t)
	systems := []string{"/dev/shm", "/tmp"} // the second where the first is small
	user := 20_000
	make := func(end string) (err error) {
		for _, system := range systems {
			folder := fmt.Sprintf("%s/cudasim-%d%s", system, user, end)
			err = errors.Join(err, os.Mkdir(folder, 0o700))
			t.Cleanup(func() { os.Remove(folder) })
		}
		return err
	}
	for made := fs.ErrExist; errors.Is(made, fs.ErrExist); { // another run of the tests may have, or have left, its folder
		user++
		made = make("")
	}
	binary := readable(t, compile(t, "shared", 0))
	start := func() (string, string) {
		out, complaints, err := obeys(binary, user, "start 0\n", append(environment(t), "CUDASIM_SHARED=name")...)
		require.NoError(t, err, complaints)
		return out, complaints
	}
	out, complaints := start()
	require.Equal(t, "0\n", out, complaints)
	var namespace unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/ns/user", &namespace))
	end := fmt.Sprint("-", namespace.Ino)
	for _, system := range systems {
		_ = os.Remove(fmt.Sprintf("%s/cudasim-%d%s", system, user, end))
	}
	require.NoError(t, make(end))
	out, complaints = start()
	require.Equal(t, "304\n", out)
	require.Regexp(t, fmt.Sprintf("cudasim: CUDASIM_SHARED: (/dev/shm|/tmp)/cudasim-%d%s/", user, end), complaints)
	require.Contains(t, complaints, "can't be used: Operation not permitted; cuInit returns 304\n")
}

// Containers have 64 MiB there, and some machines have a folder in which nothing can be made.
func TestASmallSharedMemory(t *testing.T) {
	const own = "TEST_SMALL_SHARED"
	if os.Getenv(own) != "" {
		g := newGroup(t)
		first, second := g.start(), g.start()
		first.does(60*mib, "allocate")
		second.requireFree(4)
		require.Contains(t, leftovers(t, g.name)[0], "/tmp/cudasim-")
		return
	}
	flags := []string{"--mount"}
	if os.Geteuid() != 0 {
		flags = append(flags, "--map-root-user")
	}
	hermetic.Namespaces(t, flags...)
	for _, options := range []string{"size=64m", "ro"} {
		within := exec.Command("unshare", append(flags, "sh", "-c", `mount -t tmpfs -o "$1" tmpfs /dev/shm && exec "$2" "$3"`, "sh",
			options, os.Args[0], "-test.run=^"+t.Name()+"$")...)
		within.Env = append(os.Environ(), own+"=1")
		output, err := within.CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}

// The next process that starts, in whatever group, removes the files of killed ones.
func TestFilesOfTheKilledAreRemoved(t *testing.T) {
	g := newGroup(t)
	victim := g.start()
	require.Len(t, leftovers(t, g.name), 1)
	victim.kill() // from now on any other process on this machine may remove it
	newGroupNamed(g, "another").start()
	require.Empty(t, leftovers(t, g.name))
}

func TestProcessesThatStartTogether(t *testing.T) {
	const processes, rounds = 16, 8
	started := newGroup(t)
	for round := range rounds {
		g := newGroupNamed(started, strconv.Itoa(round)) // the file is new
		all := make([]*sharer, processes)
		for i := range all {
			all[i] = g.process()
		}
		for _, s := range all {
			s.send("start", 0)
			s.send("allocate", 16*mib)
		}
		got := 0
		for _, s := range all {
			require.Equal(t, "0", s.answer())
			if s.answer() == "0" {
				got++
			}
		}
		require.Equal(t, 4, got, "64 MiB for %d processes of 16 each", processes)
		for _, s := range all {
			s.requireFree(0)
		}
		for _, s := range all {
			s.end()
		}
		require.Empty(t, leftovers(t, g.name))
	}
}

// The file appears and vanishes, and there are never two.
func TestProcessesThatJoinAndLeave(t *testing.T) {
	g := newGroup(t)
	holder := "HOLDER=" + filepath.Join(t.TempDir(), "holder")
	all := make([]*sharer, 4)
	for i := range all {
		all[i] = g.process(holder)
		all[i].send("join_and_leave", 500)
	}
	for _, s := range all {
		require.Equal(t, "0", s.answer())
	}
}

func TestAllocationsOfSeveralProcessesSumUp(t *testing.T) {
	g := newGroup(t)
	all := make([]*sharer, 4)
	for i := range all {
		all[i] = g.start("CUDASIM_MEMORY=4G")
	}
	for _, s := range all {
		s.send("churn", 2500)
	}
	total := 0
	for _, s := range all {
		held, err := strconv.Atoi(s.answer())
		require.NoError(t, err)
		require.NotZero(t, held)
		total += held
	}
	want := fmt.Sprintf("%d of %d", 4<<30-total, 4<<30)
	for _, s := range all {
		require.Equal(t, want, s.do("info", 0))
	}
	for _, s := range all {
		s.does(0, "free")
	}
	require.Equal(t, fmt.Sprintf("%d of %d", 4<<30, 4<<30), all[0].do("info", 0))
}

// At whatever moment a process is killed, the others go on and count correctly.
func TestKillingInTheMiddle(t *testing.T) {
	g := newGroup(t)
	survivor := g.start()
	var victims sync.WaitGroup
	for i := range 40 {
		victim := g.process()
		victim.send("start", 0)
		victim.send("churn", 1_000_000)
		victims.Go(func() {
			time.Sleep(time.Duration(i%8) * time.Millisecond)
			victim.kill()
		})
		if i%8 == 7 {
			victims.Wait()
		}
	}
	victims.Wait()
	survivor.requireFree(64)
	survivor.does(64*mib, "allocate")
}

// A machine has more locks than the kernel tells of at one time, and NVML still does not look through all processes.
func TestNVMLFindsProcessesByTheirLocks(t *testing.T) {
	cmd := exec.Command(compile(t, "locks", 0))
	cmd.Env = append(environment(t), fmt.Sprintf("CUDASIM_SHARED=%s-%d", t.Name(), os.Getpid()))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "1 1 4194304 0\n", string(out))
}
