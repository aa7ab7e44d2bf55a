package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	"tms/internal/snapshot/tree"
)

// startPython starts a program of Python under tms run, on simulated devices.
func startPython(t *testing.T, arguments ...string) *steered {
	t.Helper()
	return startPythonWith(t, nil, arguments...)
}

// startPythonWith is startPython with flags of tms run.
func startPythonWith(t *testing.T, flags []string, arguments ...string) *steered {
	t.Helper()
	found, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("there is no python3: ", err)
	}
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	t.Setenv("TMS_LIBRARY", built(t, "lib", "libtms.so"))
	t.Setenv("CUDASIM_MEMORY", "256M")
	program := exec.Command(tms, slices.Concat([]string{"run"}, flags, []string{"--", strings.TrimSpace(string(found))}, arguments)...)
	program.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	return startProgram(t, program)
}

// endAll kills processes, and waits until their numbers are free.
func endAll(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, pid := range pids {
		awaitEnd(t, pid)
	}
}

// A parent and its children of both kinds are one snapshot, with all that they have open between them: it goes on, and
// starts again, and everything can be paused and resumed afterwards. What is in shared memory comes back even when it
// is gone since.
func TestATreeIsRestored(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	ownSockets(t)
	s := startPython(t, filepath.Join("testdata", "tree.py"))
	directory := filepath.Join(t.TempDir(), "snapshots")
	require.Equal(t, "ok", s.do("check"))
	client, err := net.Dial("tcp", "127.0.0.1:"+s.do("port"))
	require.NoError(t, err)
	defer client.Close()
	require.Equal(t, "ok", s.do("accept"))

	children := s.do("children")
	child, _, _ := strings.Cut(children, " ")
	fails(t, exitNo, "give the number of the process that has both ends", "snapshot", child, directory)
	if s.do("ring") == "ok" {
		fails(t, exitNo, "process "+s.number()+" uses io_uring, which CRIU cannot dump", "snapshot", s.number(), directory)
		s.do("unring")
	}
	require.Equal(t, "ok", s.do("check"))

	first := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json"))
	require.Len(t, first.Processes, 5) // with Python's resource tracker
	require.Equal(t, "ok", s.do("check"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	_, err = io.ReadAll(client) // ends
	_ = err                     // perhaps by a reset

	for _, arguments := range [][]string{nil, {"--name", first.Name}} { // the older one after its shared memory is gone
		again, is := s.restored(t, directory, arguments...)
		require.ElementsMatch(t, first.Processes, is.Processes)
		require.Nil(t, is.Within)
		require.Equal(t, children, again.do("children"))
		require.Equal(t, "ok", again.do("check"))
		require.Contains(t, []string{"b''", "ConnectionResetError", "OSError"}, again.do("dropped"))
		client, err := net.Dial("tcp", "127.0.0.1:"+again.do("port"))
		require.NoError(t, err)
		require.Equal(t, "ok", again.do("accept"))
		require.NoError(t, client.Close())
		for range 2 {
			require.Equal(t, 3, strings.Count(succeeds(t, "pause", "--all"), ": paused, "))
			require.Equal(t, 3, strings.Count(succeeds(t, "resume", "--all"), ": resumed, "))
			require.Equal(t, "ok", again.do("check"))
		}
		require.Equal(t, "-9", again.do("end"))
		endAll(t, is.Processes[0])
		require.Eventually(t, func() bool { // Python's resource tracker removes the shared memory, and ends
			for _, pid := range strings.Fields(children) {
				number, _ := strconv.Atoi(pid)
				_ = syscall.Kill(number, syscall.SIGKILL)
			}
			for _, pid := range is.Processes {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
				if syscall.Kill(pid, 0) != syscall.ESRCH {
					return false
				}
			}
			return true
		}, time.Minute, 10*time.Millisecond)
	}
}

// A program without io_uring stays so in its restore and in a copy, and so do its threads, its children, and what it starts.
func TestATreeWithoutRings(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	ownSockets(t)
	s := startPythonWith(t, []string{"--no-io-uring"}, filepath.Join("testdata", "tree.py"))
	directory := filepath.Join(t.TempDir(), "snapshots")
	filtered := func(pids []int) {
		for _, pid := range pids {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
			require.NotEmpty(t, threads)
			for _, path := range threads {
				status, err := os.ReadFile(path)
				if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // the thread has just ended
					continue
				}
				require.NoError(t, err)
				require.Regexp(t, `Seccomp:\t2\nSeccomp_filters:\t1\n`, string(status))
			}
		}
	}
	require.Equal(t, "ENOSYS ENOSYS ENOSYS", s.do("rings"))
	taken := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json"))
	filtered(taken.Processes)
	require.Equal(t, "ok", s.do("check"))
	require.NoError(t, s.Process.Kill())
	require.Error(t, s.Wait())
	endAll(t, taken.Processes...)
	for _, arguments := range [][]string{nil, {"-n", "1"}} {
		again, is := s.restored(t, directory, arguments...)
		require.Equal(t, "ok", again.do("check"))
		require.Equal(t, "ENOSYS ENOSYS ENOSYS", again.do("rings"))
		filtered(is.Processes)
		endAll(t, is.Processes...)
	}
}

// TCP connections between the processes of a tree stay, in the program and in its restore; with the connection of a client,
// and in a copy, all are closed, and the client is told.
func TestConnectionsWithinATree(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	ownSockets(t)
	s := startPython(t, filepath.Join("testdata", "tree.py"))
	directory := filepath.Join(t.TempDir(), "snapshots")
	require.Equal(t, "ok", s.do("connect"))
	taken := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json"))
	require.Equal(t, "ok", s.do("talk"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	for _, pid := range taken.Processes {
		awaitEnd(t, pid)
	}

	copied, is := s.restored(t, directory, "-n", "1")
	require.Equal(t, "closed", copied.do("talk"))
	endAll(t, is.Init)

	s, _ = s.restored(t, directory)
	require.Equal(t, "ok", s.do("talk"))
	require.Equal(t, "ok", s.do("check"))
	client, err := net.Dial("tcp", "127.0.0.1:"+s.do("port"))
	require.NoError(t, err)
	defer client.Close()
	require.Equal(t, "ok", s.do("accept"))
	succeeds(t, "snapshot", s.number(), directory)
	require.Equal(t, "ok", s.do("talk"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	_, err = io.ReadAll(client) // ends
	_ = err                     // perhaps by a reset
	for _, pid := range taken.Processes {
		awaitEnd(t, pid)
	}
	s, _ = s.restored(t, directory)
	require.Equal(t, "closed", s.do("talk"))
	require.Equal(t, "ok", s.do("check"))
}

// A restore closes connections where one end has sent what the other has not read, because CRIU cannot restore these. The
// command says so, and the program that goes on keeps them.
func TestAConnectionWhoseOtherEndReadsSlowly(t *testing.T) {
	needsCRIU(t)
	if !alone(t) { // the numbers are free at the restore
		return
	}
	ownSockets(t)
	s := startPython(t, filepath.Join("testdata", "tree.py"))
	directory := filepath.Join(t.TempDir(), "snapshots")
	require.Equal(t, "ok", s.do("connect"))
	taken := parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json"))
	require.Empty(t, taken.Note)
	require.Equal(t, "ok", s.do("flood"))
	taken = parsed[tree.Taken](t, succeeds(t, "snapshot", s.number(), directory, "--json"))
	require.Contains(t, taken.Note, "a restore closes the TCP connections between the processes, because one end had sent")
	for range 10 {
		require.Equal(t, "ok", s.do("drain"))
	}
	require.Equal(t, "ok", s.do("talk"))
	succeeds(t, "snapshot", s.number(), directory, "--stop")
	require.Error(t, s.Wait())
	for _, pid := range taken.Processes {
		awaitEnd(t, pid)
	}
	s, _ = s.restored(t, directory)
	require.Equal(t, "closed", s.do("drain"))
	require.Equal(t, "closed", s.do("talk"))
	require.Equal(t, "ok", s.do("check"))
}

// alone runs a test in a PID namespace of its own, where the simulator's NVML shows no other program, and with a
// /dev/shm of its own, where no other snapshot removes names. It reports whether this is the process that runs there.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv("TEST_ALONE") != "" {
		return true
	}
	hermetic.Namespaces(t, "--pid", "--fork", "--mount-proc")
	within := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
		`mount -t tmpfs tmpfs /dev/shm && setsid --wait "$@"; exit $?`, "sh",
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	within.Env = append(os.Environ(), "TEST_ALONE=1")
	output, err := within.CombinedOutput()
	if strings.Contains(string(output), "--- SKIP: "+t.Name()) {
		t.Skipf("%s", output)
	}
	require.NoError(t, err, "%s", output)
	return false
}

// In some containers programs belong to a session from outside. The words come before anything is paused.
func TestASnapshotNeedsASessionOfItsNamespace(t *testing.T) {
	needsCRIU(t)
	within := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
		`sleep 600 & "$0" snapshot $! "$1"`, tms, t.TempDir())
	output, err := within.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "start the program by setsid (setsid tms run ...)")
}

// A copy of a program from a container has the lowest numbers, which the first threads of its namespace would have. As in
// a container, /proc/sys can only be read.
func TestACopyHasTheLowestNumbers(t *testing.T) {
	needsCRIU(t)
	ownSockets(t)
	found, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("there is no python3: ", err)
	}
	port := ports(t, 1)
	container := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
		`mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys || exit
		setsid "$0" run -- "$1" "$2" "$3" </dev/null >>"$4/log" 2>&1 &
		for try in $(seq 600); do
			"$0" snapshot $! "$4/snapshots" --stop >>"$4/log" 2>&1 && break # it listens
			sleep 0.1
		done
		"$0" restore "$4/snapshots" -n 1 --json >"$4/restored" 2>&1 || cat "$4/log" "$4/restored" >&2
		echo restored $!; cat`,
		tms, strings.TrimSpace(string(found)), filepath.Join("..", "..", "docs", "examples", "copies", "server.py"),
		strconv.Itoa(port), t.TempDir())
	container.Env = append(os.Environ(), "LD_LIBRARY_PATH="+built(t, "sim"), "TMS_LIBRARY="+built(t, "lib", "libtms.so"),
		"CUDASIM_MEMORY=256M", "PYTHONDONTWRITEBYTECODE=1")
	within := startProgram(t, container)
	require.Regexp(t, "^restored [2-9]$", within.line())
	said, err := os.ReadFile(filepath.Join(container.Args[len(container.Args)-1], "restored"))
	require.NoError(t, err)
	require.Empty(t, parsed[tree.Restored](t, strings.TrimSpace(string(said))).Error, "%s", said)
	answers(t, port)
}

// answers asks the server of docs/examples/copies.
func answers(t *testing.T, port int) (answer struct {
	Port, Seed, Sum int
	Random          float64
}) {
	t.Helper()
	response, err := http.Get(fmt.Sprint("http://127.0.0.1:", port))
	require.NoError(t, err)
	defer response.Body.Close()
	require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
	require.Equal(t, port, answer.Port)
	require.Equal(t, 1<<20, answer.Sum)
	return answer
}

// ports returns the first of some ports in a row that no program has.
func ports(t *testing.T, count int) (first int) {
	t.Helper()
	for first = 20000 + os.Getpid()%10000; ; first += count {
		free := true
		for i := range count {
			listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", first+i))
			if free = free && err == nil; err == nil {
				require.NoError(t, listener.Close())
			}
		}
		if free {
			return first
		}
	}
}

// Copies of the server of docs/examples/copies run beside the program itself and beside each other, on the GPUs that
// --to names, with ports and seeds from the hook. They are listed, paused and resumed by their numbers here. A copy
// whose hook fails is not there, and the others are.
func TestCopies(t *testing.T) {
	needsCRIU(t)
	if !alone(t) {
		return
	}
	ownSockets(t)
	t.Setenv("CUDASIM_DEVICES", "3")
	examples := filepath.Join("..", "..", "docs", "examples", "copies")
	port := ports(t, 4)
	s := startPython(t, filepath.Join("testdata", "driversocket.py"), filepath.Join(examples, "server.py"), strconv.Itoa(port))
	listens := func(port int) func() bool {
		return func() bool {
			connection, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
			if err == nil {
				_ = connection.Close()
			}
			return err == nil
		}
	}
	require.Eventually(t, listens(port), time.Minute, 5*time.Millisecond)
	answers(t, port)
	directory := filepath.Join(t.TempDir(), "snapshots")
	succeeds(t, "snapshot", s.number(), directory)
	answers(t, port)
	before, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", s.Process.Pid))
	require.NoError(t, err)

	// A command that is killed before a copy has all that it needs leaves none of it.
	kills := filepath.Join(t.TempDir(), "kills")
	executable(t, kills, []byte("#!/bin/sh\nkill -9 $PPID\n"))
	require.ErrorContains(t, exec.Command(tms, "restore", directory, "-n", "2", "--hook", kills).Run(), "signal: killed")
	require.Eventually(t, func() bool {
		found, err := filepath.Glob(filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms", "namespace-*"))
		return err == nil && len(found) == 0 && len(parsed[[]any](t, succeeds(t, "ps", "--json"))) == 1
	}, time.Minute, 5*time.Millisecond)

	hook := filepath.Join(t.TempDir(), "hook")
	require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\n[ $TMS_RESTORE_COPY != 1 ] || exit 7\nexec "+
		"\"$HOOK\"\n"), 0o700))
	script, err := filepath.Abs(filepath.Join(examples, "hook.sh"))
	require.NoError(t, err)
	t.Setenv("HOOK", script)
	t.Setenv("FIRST_PORT", strconv.Itoa(port+1))
	restore := exec.Command(tms, "restore", directory, "-n", "3", "--to", "2,1", "--hook", hook, "--json")
	said := filepath.Join(t.TempDir(), "said")
	restore.Stdout, err = os.Create(said) // a pipe would stay open in the programs
	require.NoError(t, err)
	restore.Stderr, err = os.Create(said + ".errors")
	require.NoError(t, err)
	require.Error(t, restore.Run())
	require.Equal(t, exitNo, restore.ProcessState.ExitCode())
	out, err := os.ReadFile(said)
	require.NoError(t, err)
	words, err := os.ReadFile(said + ".errors")
	require.NoError(t, err)
	require.Contains(t, string(words), "tms: copy 1: the hook "+hook+" has failed (exit status 7), and so this copy has ended")
	seeds := map[int]bool{}
	for number, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		is := parsed[tree.Restored](t, line)
		require.Equal(t, number, is.Copy)
		if number == 1 {
			require.Contains(t, is.Error, "has failed")
			continue
		}
		t.Cleanup(func() { endAll(t, is.Init) })
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", is.Init))
		require.NoError(t, err)
		require.Equal(t, tree.InitName+"\n", string(name))
		own, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", is.Processes[0]))
		require.NoError(t, err)
		require.Equal(t, before, own)
		pid := strconv.Itoa(is.Processes[0])
		require.Equal(t, []int{s.Process.Pid}, is.Within)
		require.NotEqual(t, is.Within, is.Processes)
		namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", is.Processes[0]))
		require.NoError(t, err)
		sockets, err := os.ReadFile("/proc/net/unix")
		require.NoError(t, err)
		require.Contains(t, string(sockets), fmt.Sprintf("@cuda-uvmfd-%s-%d@\n", strings.Trim(namespace, "pid:[]"), is.Within[0]))
		require.Eventually(t, listens(port+1+number), time.Minute, 5*time.Millisecond)
		seeds[answers(t, port+1+number).Seed] = true
		require.Regexp(t, `(?m)^ *`+pid+` +python\S* .* 2 as 0 `, succeeds(t, "ps"))
		require.Contains(t, succeeds(t, "pause", pid), pid+": paused, ")
		require.Contains(t, succeeds(t, "resume", pid), pid+": resumed, ")
		answers(t, port+1+number)
	}
	require.Len(t, seeds, 2)
	answers(t, port)
	require.Equal(t, 3, strings.Count(succeeds(t, "pause", "--all"), ": paused, "))
	require.Equal(t, 3, strings.Count(succeeds(t, "resume", "--all"), ": resumed, "))
}
