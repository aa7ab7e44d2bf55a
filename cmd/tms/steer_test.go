package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/machine/hostmemory"
	"tms/vmm/stats"
)

// steered is a program of preload's tests that listens, and follows commands on its standard input.
type steered struct {
	*exec.Cmd
	t       *testing.T
	say     io.Writer
	answers *bufio.Reader
}

func steeredProgram(t *testing.T) string {
	t.Helper()
	return fixture(t, "steered")
}

// fixture builds a program of preload's tests.
func fixture(t *testing.T, name string, flags ...string) string {
	t.Helper()
	return hermetic.Compile(t, name, append(flags, "-std=gnu11", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror",
		filepath.Join("..", "..", "preload", "testdata", name+".c"), "-Wl,-z,dynamic-undefined-weak",
		"-L"+built(t, "sim"), "-l:libcudart.so.13", "-l:libcuda.so.1", "-ldl")...)
}

func startSteered(t *testing.T, program string, environment ...string) *steered {
	t.Helper()
	command := exec.Command(program)
	command.Env = append(os.Environ(), "LD_PRELOAD="+built(t, "lib", "libtms.so"),
		"LD_LIBRARY_PATH="+built(t, "sim"), "CUDASIM_MEMORY=256M",
		"TMS_CONTROL=1")
	command.Env = append(command.Env, environment...)
	return startToListen(t, command)
}

// startToListen starts such a program, and returns once it listens.
func startToListen(t *testing.T, command *exec.Cmd) *steered {
	t.Helper()
	s := startProgram(t, command)
	s.do("allocate", "serve") // returns once the process listens
	return s
}

func startProgram(t *testing.T, command *exec.Cmd) *steered {
	t.Helper()
	s := &steered{t: t, Cmd: command}
	stdin, err := s.StdinPipe()
	require.NoError(t, err)
	stdout, err := s.StdoutPipe()
	require.NoError(t, err)
	if s.Stderr == nil {
		s.Stderr = os.Stderr
	}
	s.say, s.answers = stdin, bufio.NewReader(stdout)
	require.NoError(t, s.Start())
	t.Cleanup(func() {
		_ = s.Process.Kill()
		_ = s.Wait()
	})
	return s
}

// do sends lines one after another, and returns its answer to the last.
func (s *steered) do(lines ...string) (answer string) {
	s.t.Helper()
	for _, line := range lines {
		_, err := io.WriteString(s.say, line+"\n")
		require.NoError(s.t, err)
		answer = s.line()
	}
	return answer
}

// line returns its next line.
func (s *steered) line() string {
	s.t.Helper()
	line, err := s.answers.ReadString('\n')
	require.NoError(s.t, err)
	return strings.TrimSuffix(line, "\n")
}

// advances waits until the program answers something else, such as a higher count.
func (s *steered) advances(words string) {
	s.t.Helper()
	before := s.do(words)
	require.Eventually(s.t, func() bool { return s.do(words) != before }, time.Minute, 5*time.Millisecond)
}

// command runs tms, and returns its output and exit code. ps gives each process a second; on a busy machine it is run
// again.
func command(t *testing.T, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	for {
		stdout, stderr, code = once(t, arguments...)
		if arguments[0] != "ps" || !strings.Contains(stdout, "does not answer (stopped?)") {
			return stdout, stderr, code
		}
	}
}

func once(t *testing.T, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	return ran(t, exec.Command(tms, arguments...))
}

func ran(t *testing.T, c *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errors_ bytes.Buffer
	c.Stdout, c.Stderr = &out, &errors_
	err := c.Run()
	var exit *exec.ExitError
	require.True(t, err == nil || errors.As(err, &exit), "%v", err)
	return out.String(), errors_.String(), c.ProcessState.ExitCode()
}

// succeeds runs tms, which must succeed, and returns its output.
func succeeds(t *testing.T, arguments ...string) (stdout string) {
	t.Helper()
	stdout, stderr, code := command(t, arguments...)
	require.Zero(t, code, "tms %v: %s", arguments, stderr)
	return stdout
}

// fails runs tms, which must end with the code, and write the words, among others, to stderr. All that is returned.
func fails(t *testing.T, code int, words string, arguments ...string) (stderr string) {
	t.Helper()
	_, stderr, ended := command(t, arguments...)
	require.Equal(t, code, ended, "tms %v: %s", arguments, stderr)
	require.Contains(t, stderr, words)
	return stderr
}

// parsed reads a value that tms has written as JSON.
func parsed[T any](t *testing.T, text string) (value T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &value), text)
	return value
}

// cut sends tms a signal some time after its start, and returns it when it has ended.
func cut(t *testing.T, after time.Duration, by os.Signal, arguments ...string) *os.ProcessState {
	t.Helper()
	c := exec.Command(tms, arguments...)
	require.NoError(t, c.Start())
	time.Sleep(after)
	require.NoError(t, c.Process.Signal(by))
	_ = c.Wait()
	return c.ProcessState
}

// interrupted interrupts tms as soon as it may be, and returns what it has written to stderr.
func interrupted(t *testing.T, ready func() bool, arguments ...string) (stderr string) {
	t.Helper()
	c := exec.Command(tms, arguments...)
	var said bytes.Buffer
	c.Stderr = &said
	require.NoError(t, c.Start())
	require.Eventually(t, ready, time.Minute, 5*time.Millisecond)
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.Error(t, c.Wait())
	require.Equal(t, exitNo, c.ProcessState.ExitCode())
	return said.String()
}

// when waits for something that becomes true while the test waits for a command, and then acts.
func when(ready func() bool, act func()) {
	for !ready() {
		time.Sleep(time.Millisecond)
	}
	act()
}

// dies runs tms, which is killed as it asks the driver to do something with the process.
func dies(t *testing.T, at string, arguments ...string) {
	t.Helper()
	c := exec.Command(tms, arguments...)
	c.Env = append(os.Environ(), "CUDASIM_FAIL=cuCheckpointProcess"+at+":kill")
	require.ErrorContains(t, c.Run(), "signal: killed", at)
}

func status(pid int, within time.Duration) (control.ProcessState, error) {
	connection, err := client.Dial(pid)
	if err != nil {
		return control.ProcessState{}, err
	}
	defer connection.Close()
	return connection.Status(context.Background(), within)
}

// doing returns what the process is doing for a client.
func (s *steered) doing() string {
	s.t.Helper()
	state, err := status(s.Process.Pid, time.Minute)
	require.NoError(s.t, err)
	return state.Doing
}

func ownSockets(t *testing.T) {
	t.Helper()
	directory, err := os.MkdirTemp("/tmp", "tms-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	t.Setenv("XDG_RUNTIME_DIR", directory)
	t.Setenv("TMPDIR", directory)
}

func TestSteering(t *testing.T) {
	ownSockets(t)
	out, words, code := command(t, "ps")
	require.Empty(t, out)
	require.Contains(t, words, "no process of this user listens")
	require.Zero(t, code)
	require.Equal(t, "[]\n", succeeds(t, "ps", "--json"))
	fails(t, exitNoProcess, "no process of this user listens", "pause", "--all", "--force")

	program := steeredProgram(t)
	one, other := startSteered(t, program), startSteered(t, program)
	first, second := one.number(), other.number()

	out, words, code = command(t, "pause", first)
	require.Empty(t, out)
	require.Equal(t, exitNo, code)
	require.Regexp(t, "^tms: "+first+": libtms_reach.so is not preloaded, .*\n$", words)

	require.Regexp(t, "^"+first+`: paused, 32\.00 MiB freed in \d+\.\d\d s, 8\.00 MiB without contents`+"\n$",
		succeeds(t, "pause", "--force", first, first))
	require.Equal(t, first+": nothing to pause\n", succeeds(t, "pause", "--force", "--tag", "cache", first))

	const unknown = `nothing was ever allocated with tag "wieghts"; tags so far: "cache", "weights"`
	for range 2 { // each time, unlike the process itself
		require.Equal(t, first+": nothing to pause: "+unknown+"\n",
			succeeds(t, "pause", "--force", first, "--tag", "wieghts"))
		require.Equal(t, first+": nothing to resume: "+unknown+"\n", succeeds(t, "resume", first, "--tag", "wieghts"))
	}
	require.Equal(t, unknown, parsed[[]group.Outcome](t, succeeds(t, "resume", first, "--tag", "wieghts", "--json"))[0].Note)

	out, words, code = command(t, "ps")
	require.Zero(t, code)
	require.Empty(t, words)
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(out, "\n    ", " ")), "\n")
	require.Len(t, lines, 10)
	require.Regexp(t, `^ *PID COMMAND +DEVICE TAG +LIVE +HELD STATE +BACKUP$`, lines[0])
	requireFits(t, out)
	require.Regexp(t, `(?m)^ *`+first+` \S+ +- as 0 weights +24\.0 MiB +0 paused \ds +24\.0 MiB host$`, out)
	require.Equal(t, 1, strings.Count(out, "\nNVML does not show "+uuidOf(0)+": device 0 of "), "%s", out)
	require.Contains(t, out, "\n"+first+": paused 8.00 MiB without contents: cache\n")
	require.Equal(t, 2, strings.Count(out, "\n"+first+": paused by "), "%s", out)
	require.Contains(t, out, "\n"+second+": a pause would free 8.00 MiB without contents: cache\n")
	require.Regexp(t, `(?m)^ *`+second+` \S+ +- as 0 cache +8\.00 MiB 8\.00 MiB active +0$`, out)

	// Several at once: the command does what it can.
	out, words, code = command(t, "pause", "--force", "--tag", "weights", "--json", second, "999999999")
	require.Equal(t, exitNoProcess, code)
	require.Equal(t, "tms: 999999999: there is no such process\n", words)
	outcomes := parsed[[]group.Outcome](t, out)
	require.Len(t, outcomes, 2)
	require.True(t, outcomes[0].OK)
	require.Equal(t, uint64(24<<20), outcomes[0].Bytes)
	require.Zero(t, outcomes[0].WithoutContents)
	require.Positive(t, outcomes[0].Seconds)
	require.False(t, outcomes[1].OK)
	require.NotEmpty(t, outcomes[1].Error)

	require.Contains(t, succeeds(t, "pause", "--force", "--json", second), `"without_contents_bytes":8388608`)
	succeeds(t, "resume", "--tag", "cache", second)

	one.do("hog")
	require.NotContains(t, fails(t, exitNo, "tms: "+first+": resume: ", "resume", first, second), second)
	go when(func() bool { return one.doing() == control.Resume }, func() { one.do("unhog") })
	out = succeeds(t, "resume", "--all", "--wait", "60")
	require.Regexp(t, "(?m)^"+first+`: resumed, 32\.00 MiB in \d+\.\d\d s$`, out)
	require.Regexp(t, "(?m)^"+second+`: nothing to resume$`, out)
	require.Equal(t, "ok", one.do("check"))
	require.Equal(t, "ok", other.do("check"))

	states := parsed[[]control.ProcessState](t, succeeds(t, "ps", "--json"))
	require.Len(t, states, 2)
	require.ElementsMatch(t, []int{one.Process.Pid, other.Process.Pid}, []int{states[0].PID, states[1].PID})
	require.Equal(t, program, states[0].Command)
	require.Len(t, states[1].Stats.Devices[0].Tags, 2)

	out = succeeds(t, "__complete", "pause", first, "")
	require.Contains(t, out, second+"\t"+program)
	require.NotContains(t, out, first+"\t")

	// One process is stopped: it is named, and nothing is asked of it.
	stop(t, one.Process)
	out, _, code = once(t, "ps")
	require.Zero(t, code)
	require.Regexp(t, `(?m)^ *`+first+` it does not answer \(stopped\?\)$`, out)
	require.Contains(t, out, second)
	fails(t, exitNoProcess, "does not answer", "pause", "--force", first)
	require.NoError(t, one.Process.Signal(syscall.SIGCONT))
	require.Contains(t, succeeds(t, "pause", "--force", first), "paused, 32.00 MiB")
	succeeds(t, "resume", first)

	// The command is interrupted while it waits, and in the middle of a pause: afterwards it is as if nothing had been
	// asked.
	other.do("pause", "hog")
	resuming := func() bool { return other.doing() == control.Resume }
	require.Contains(t, interrupted(t, resuming, "resume", second, "--wait", "600"), "interrupted")
	other.do("unhog", "resume")
	for i := range hermetic.Often(20, 5) {
		cut(t, time.Duration(i)*4*time.Millisecond, os.Kill, "pause", "--force", second)
	}
	require.Eventually(t, func() bool {
		command(t, "resume", second) // if the command had already ended
		out, _, _ := command(t, "ps")
		return regexp.MustCompile(second+`.*active`).MatchString(out) && !strings.Contains(out, "paused")
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "ok", other.do("check"))
}

func TestAProcessThatDoesNotListen(t *testing.T) {
	ownSockets(t)
	fails(t, exitNoProcess, "it does not listen: start it with tms run or TMS_CONTROL=1", "pause",
		fmt.Sprint(os.Getpid()))
}

// The table keeps to its width, and sends a terminal nothing but text.
func TestProcessTable(t *testing.T) {
	now := time.Unix(2_000_000, 0)
	long := strings.Repeat("long", 30)
	boxed := fleet.Cgroup{Container: strings.Repeat("0123456789abcdef", 4)}
	tag := func(name string, physical, paused uint64, since time.Duration) stats.Tag {
		return stats.Tag{Tag: name, LiveBytes: physical + paused, PhysicalBytes: physical, PausedBytes: paused,
			PausedSince: float64(now.Add(-since).UnixMilli()) / 1000, BackupBytes: paused, HostBytes: paused}
	}
	devices := []stats.Device{
		{GPU: new(0), Tags: []stats.Tag{tag("größe", 1000, 0, 0), tag(long, 1023<<20, 1<<40, 99*time.Minute)}},
		{GPU: new(0), Device: 7, Progress: &stats.Progress{Operation: "pause"}, Tags: []stats.Tag{tag("\x1b[2J", 0, 15<<30, 0)}},
		{Device: 8, Tags: []stats.Tag{tag("a", 0, 1<<64-1, 4000*24*time.Hour)}},
	}
	out := page{width: tableWidth}
	writeProcesses(&out, []fleet.Process{
		{ProcessState: control.ProcessState{PID: 1, Command: "short", Doing: control.Pause,
			Stats: control.Stats{Stats: stats.Stats{Devices: devices}}}},
		{ProcessState: control.ProcessState{PID: 4194304, Command: long + "\n" + long}},
		{ProcessState: control.ProcessState{PID: 13, Command: "boxed"}, Cgroup: boxed},
		{ProcessState: control.ProcessState{PID: 12}, Error: "it does not answer"},
	}, now)
	require.Equal(t, `    PID COMMAND   DEVICE TAG            LIVE     HELD STATE               BACKUP
      1 short          0 größe      0.98 KiB 0.98 KiB active                   0
      1 short          0 longlongl… 1.00 TiB 1.00 GiB partly 99m   1.00 TiB host
      1 short     0 as 7 �[2J       15.0 GiB        0 pausing      15.0 GiB host
      1 short     - as 8 a          16.0 EiB        0 paused 4000d 16.0 EiB host
4194304 longlong…      - -                 0        0 -                        0
     13 01234567…      - -                 0        0 -                        0
     12 it does not answer
`, out.String())
	requireFits(t, out.String())
}

func requireFits(t *testing.T, table string) {
	t.Helper()
	for line := range strings.Lines(table) {
		require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), tableWidth, line)
	}
}

// stop stops a process, and returns when each of its threads has: the signal alone returns before.
func stop(t *testing.T, process *os.Process) {
	t.Helper()
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", process.Pid))
		require.NoError(t, err)
		for _, task := range tasks {
			text, _ := os.ReadFile(task) // nothing, if the thread has ended
			if _, state, found := strings.Cut(string(text), ") "); found && !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	}, time.Minute, 5*time.Millisecond)
}

// A process of another PID namespace that shares the directory of sockets has its number there. Here that is the number
// of an unrelated process, and neither is paused by it.
func TestAnotherNamespacesNumber(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a PID namespace")
	}
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim")) // for the command, which would also ask the driver
	program := steeredProgram(t)
	here := exec.Command(program)
	here.Env = append(os.Environ(), "MASTER_ADDR=here", "MASTER_PORT=1")
	other := startProgram(t, here)
	other.do("own 4")
	free := other.do("free")
	inside := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
		fmt.Sprintf("exec 3<&0; echo %d > /proc/sys/kernel/ns_last_pid; LD_PRELOAD=%s TMS_CONTROL=1 "+
			"MASTER_ADDR=there MASTER_PORT=1 %s <&3 & wait",
			here.Process.Pid-1, built(t, "lib", "libtms.so"), program))
	hermetic.Namespaces(t, "--pid", "--fork", "--mount-proc")
	inside.Env = append(os.Environ(), "CUDASIM_MEMORY=256M")
	contained := startToListen(t, inside)
	const words = "the process that listens by that number has it in another PID namespace"
	for _, arguments := range [][]string{
		{"pause", other.number(), "--force"}, {"pause", other.number(), "--everything", "--force"},
		{"resume", other.number()},
		{"pause", other.number(), "--dry-run"}, {"swap", other.number(), "1"}, {"idle", other.number()},
	} {
		fails(t, exitNoProcess, words, arguments...)
	}
	const noProcess = "tms: no process of job here:1 listens; see tms ps\n"
	require.Equal(t, noProcess, fails(t, exitNoProcess, noProcess, "pause", "--job", "here:1", "--force"))
	require.Equal(t, free, other.do("free"), "its CUDA calls do not wait")
	contained.do("check")

	// ps shows what the process says, with what its own entry in /proc says of it.
	states := parsed[[]fleet.Process](t, succeeds(t, "ps", "--json"))
	require.Len(t, states, 1)
	require.Empty(t, states[0].Error)
	require.Equal(t, []string{"there:1"}, states[0].Jobs)
}

// A pause whose contents find no host memory changes nothing, and says how much they take and what can be done.
func TestHostMemoryIsShort(t *testing.T) {
	available := hostmemory.Available("self", nil)
	if available == math.MaxUint64 {
		t.Skip("this machine does not say how much memory it has")
	}
	ownSockets(t)
	s := startSteered(t, steeredProgram(t), "CUDASIM_MEMORY=16T", reaching(t))
	vast := available>>30 + 64
	s.do(fmt.Sprint("vast ", vast))
	figures := `.* are needed and .* are available; .* \(tms pause --to disk writes contents to files, --discard ` +
		`gives them up`
	out, words, code := command(t, "pause", s.number())
	require.Equal(t, exitNo, code)
	require.Empty(t, out)
	require.Regexp(t, "^tms: "+s.number()+": .*not enough host memory.*"+figures, words)
	require.Equal(t, "ok", s.do("check"), "it goes on")
	out, words, _ = command(t, "pause", "--json", "--tag", "vast", s.number())
	require.Regexp(t, figures, words)
	outcomes := parsed[[]group.Outcome](t, out)
	require.Equal(t, vast<<30, outcomes[0].Host)
	require.Positive(t, outcomes[0].HostAvailable)
	require.Less(t, outcomes[0].HostAvailable, outcomes[0].Host)
	fails(t, exitNo, "--discard gives them up", "pause", "--dry-run", s.number())

	// The ways out: a pause of a part, and one without contents.
	require.Regexp(t, `: paused, 24\.00 MiB freed in .* s; 24\.00 MiB moved to disk`,
		succeeds(t, "pause", "--tag", "weights", "--to", "disk", s.number()))
	require.Contains(t, succeeds(t, "pause", "--discard", s.number()),
		" s, "+readable.Bytes(vast<<30+8<<20)+" without contents\n")
	succeeds(t, "resume", "--tag", "weights", s.number())
}
