package main

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"

	"tms/internal/control"
	"tms/internal/control/client"
)

// communicating is a program with 24 MiB of pausable weights that uses NCCL, and another that sees how much of their
// device's 128 MiB is free. Each rank of a communicator holds 4 MiB.
type communicating struct {
	*whole
	stderr *os.File
}

// said returns what the program has written to stderr.
func (c *communicating) said() string {
	text, err := os.ReadFile(c.stderr.Name())
	require.NoError(c.t, err)
	return string(text)
}

func buildC(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	arguments = append([]string{"-std=gnu11", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"}, arguments...)
	return hermetic.Compile(t, name, arguments...)
}

const (
	ncclOld = "22705" // has no ncclCommSuspend
	ncclNew = "22907"
)

func buildNCCL(t *testing.T, version string) string {
	t.Helper()
	return buildC(t, "libnccl.so.2", "-shared", "-fPIC", "-DVERSION="+version, "-Wl,-soname,libnccl.so.2",
		filepath.Join("..", "..", "preload", "testdata", "libnccl.c"), "-L"+built(t, "sim"), "-l:libcudart.so.13")
}

// startNCCL starts the program, which finds an NCCL of a version in the given way.
func startNCCL(t *testing.T, way, version string, environment ...string) *communicating {
	t.Helper()
	library := buildNCCL(t, version)
	folder := filepath.Dir(library)
	linked := []string{"-DLINKED", "-Wl,-rpath," + folder, "-L" + folder,
		filepath.Join("..", "..", "preload", "testdata", "nccl.c"),
		"-Wl,-z,dynamic-undefined-weak", "-L" + built(t, "sim"), "-l:libcudart.so.13", "-ldl", "-l:libnccl.so.2"}
	c := exec.Command(fixture(t, "nccl"), way, library)
	switch way {
	case "linked":
		c.Path = buildC(t, "linked", linked...)
	case "local":
		c.Args[2] = buildC(t, "libguest.so", append(linked, "-shared", "-fPIC")...)
	}
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim")) // for the command, which also asks the driver
	t.Setenv("CUDASIM_SHARED", filepath.Base(os.Getenv("TMPDIR")))
	shared := []string{"CUDASIM_MEMORY=128M", "TMS_COMMAND=" + tms}
	c.Env = slices.Concat(os.Environ(), shared, []string{"TMS_CONTROL=1", reaching(t)}, environment)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	c.Stderr = stderr
	started := &communicating{&whole{}, stderr}
	t.Cleanup(func() {
		t.Log(started.said())
		_ = stderr.Close()
	})
	started.steered = startToListen(t, c)
	started.other = startSteered(t, steeredProgram(t), append(shared, "TMS_CONTROL=0")...)
	started.other.do("pause")
	started.requireFree(104)
	return started
}

// beside starts the program once more, on the same device.
func (c *communicating) beside(environment ...string) *communicating {
	c.t.Helper()
	other := exec.Command(c.Path, c.Args[1:]...)
	other.Env, other.Stderr = append(slices.Clone(c.Env), environment...), c.stderr
	return &communicating{&whole{startToListen(c.t, other), c.other}, c.stderr}
}

// pause pauses everything by the command, and returns its output.
func (c *communicating) pause() string {
	c.t.Helper()
	return succeeds(c.t, "pause", c.number(), "--everything")
}

func (c *communicating) resume() {
	c.t.Helper()
	succeeds(c.t, "resume", c.number())
	c.do("check", "reduce")
}

// goesOnWith waits until so much is free again, and uses what it has.
func (c *communicating) goesOnWith(free int) {
	c.t.Helper()
	c.comesToFree(free)
	c.do("check", "reduce")
}

func TestCommunicatorsAreSuspendedWithEverything(t *testing.T) {
	for _, way := range []string{"linked", "handle", "default", "local"} {
		t.Run(way, func(t *testing.T) {
			c := startNCCL(t, way, ncclNew)
			c.do("all 2", "ranks 3 3", "reduce")
			c.requireFree(104 - 20)
			for range 2 {
				require.Regexp(t, `paused, 24.00 MiB freed in .* s, 8\.00 MiB without contents; NCCL 2\.29\.7: `+
					`5 communicators with 20\.00 MiB suspended; the rest by the driver`, c.pause())
				c.requireFree(128)
				c.do("fork")
				c.resume()
				c.requireFree(104 - 20)
			}
			// The communicators of a split, without the destroyed ones.
			c.do("split")
			require.Contains(t, c.pause(), "NCCL 2.29.7: 10 communicators with 40.00 MiB suspended")
			c.resume()
			c.do("destroy 9")
			require.Contains(t, c.pause(),
				"NCCL 2.29.7: 1 communicator with 4.00 MiB left to the driver (ncclCommSuspend waits for all ranks")
			c.requireFree(128)
			c.resume()
			c.do("destroy 1")
			require.NotContains(t, c.pause(), "NCCL")
			succeeds(t, "resume", c.number())
			c.requireFree(104)
		})
	}
}

// What cannot be suspended is left to the driver, and the output says so; the pause is still made.
func TestCommunicatorsThatStay(t *testing.T) {
	hermetic.Thorough(t)
	for _, test := range []struct{ name, version, make, environment, words string }{
		{"no function", ncclOld, "all 2", "", "NCCL 2.27.5: 2 communicators left to the driver " +
			"(this version has no ncclCommSuspend, which came with 2.29.7)"},
		{"ranks elsewhere", ncclNew, "ranks 1 2", "", "NCCL 2.29.7: 1 communicator with 4.00 MiB left to the driver " +
			"(ncclCommSuspend waits for all ranks, and some are in other processes)"},
		{"a failure", ncclNew, "all 2", "FAKE_NCCL=fail",
			"NCCL 2.29.7: 2 communicators with 8.00 MiB left to the driver (ncclCommSuspend has failed)"},
		{"not blocking", ncclNew, "all 2", "NCCL_COMM_BLOCKING=0", "NCCL 2.29.7: 2 communicators with 8.00 MiB left " +
			"to the driver (non-blocking ones go on with threads of NCCL's own)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := startNCCL(t, "linked", test.version, test.environment)
			c.do(test.make)
			for range 2 {
				require.Contains(t, c.pause(), "; "+test.words+"; the rest by the driver in ")
				c.requireFree(128)
				c.resume()
			}
		})
	}
	t.Run("two versions", func(t *testing.T) {
		c := startNCCL(t, "handle", ncclOld)
		c.do("all 2")
		c.do("other " + buildNCCL(t, ncclNew))
		c.do("all 1")
		require.Contains(t, c.pause(), "NCCL 2.27.5: 2 communicators left to the driver (this version has no "+
			"ncclCommSuspend, which came with 2.29.7); NCCL 2.29.7: 1 communicator with 4.00 MiB suspended;")
		c.resume()
	})
	t.Run("memory that is shared", func(t *testing.T) {
		c := startNCCL(t, "linked", ncclNew)
		c.do("ranks 1 2", "export")
		c.refused("it has called cudaIpcGetMemHandle, and managed memory, multicast objects, or memory that "+
			"processes share cannot be checkpointed (NCCL 2.29.7 shares memory between ranks on one host, until it is "+
			"suspended in all of them at once, as by tms pause --job ID --everything); without --everything",
			"pause", c.number(), "--everything")
		c.do("reduce")
	})
	t.Run("inside", func(t *testing.T) {
		c := startNCCL(t, "linked", ncclNew)
		c.do("all 2", "inside 20000")
		require.Contains(t, c.pause(), "2 communicators left to the driver (threads of the program are inside NCCL)")
		c.resume()
	})
}

func TestASuspendThatHangs(t *testing.T) {
	over := filepath.Join(t.TempDir(), "over")
	c := startNCCL(t, "linked", ncclNew, "FAKE_NCCL=hang"+over)
	c.do("all 2")
	c.refused("ncclCommSuspend has not come back within 1s for 2 communicators of NCCL, which may be of no use now; "+
		"all else is as before, and the program runs on", "pause", c.number(), "--everything", "--timeout", "1")
	c.do("check")
	require.Equal(t, "0", c.do("stats"))
	c.refused("has not come back from ncclCommSuspend within 1s", "pause", c.number(), "--timeout", "1")
	require.NoError(t, os.WriteFile(over, nil, 0o600))
	c.goesOnWith(96) // when the suspend returns, the communicator is resumed at once
	require.Contains(t, c.pause(), "NCCL 2.29.7: 2 communicators with 8.00 MiB suspended")
	c.resume()
}

// A suspend may return just as its caller gives up: one of the two does the resume.
func TestASuspendThatIsLate(t *testing.T) {
	hermetic.Thorough(t)
	reach, seen := filepath.Join("..", "..", "preload", "gate", "reach"), filepath.Join(t.TempDir(), "seen")
	object := buildC(t, "suspending.o", "-fPIC", "-fvisibility=hidden", "-include",
		filepath.Join("..", "..", "preload", "testdata", "late.h"), "-c", filepath.Join(reach, "suspending.c"))
	sources, err := filepath.Glob(filepath.Join(reach, "*.c"))
	require.NoError(t, err)
	sources = slices.DeleteFunc(sources, func(file string) bool { return filepath.Base(file) == "suspending.c" })
	library := buildC(t, "libtms_reach.so", append([]string{"-shared", "-fPIC", "-fvisibility=hidden",
		"-I" + filepath.Join("..", "..", "forward"), object}, sources...)...) // its headers make another library
	c := startNCCL(t, "linked", ncclNew, "LD_PRELOAD="+built(t, "lib", "libtms.so")+":"+library, "LATE="+seen)
	c.do("all 2")
	c.refused("ncclCommSuspend has not come back within 1s for 2 communicators of NCCL",
		"pause", c.number(), "--everything", "--timeout", "1")
	require.NoError(t, os.WriteFile(seen, nil, 0o600))
	c.goesOnWith(96)
	require.Contains(t, c.pause(), "NCCL 2.29.7: 2 communicators with 8.00 MiB suspended")
	c.resume()
}

func TestAResumeOfNCCLThatFails(t *testing.T) {
	c := startNCCL(t, "linked", ncclNew, "FAKE_NCCL=lose")
	c.do("all 2")
	require.Contains(t, c.pause(), "2 communicators with 8.00 MiB suspended")
	c.refused("ncclCommResume has failed for 2 communicators of NCCL, which can be used no more; all else is resumed",
		"resume", c.number())
	c.do("check")
	require.Equal(t, "0", c.do("stats"))
	require.Contains(t, c.pause(), "2 communicators left to the driver (suspended before, and not resumed since)")
	succeeds(t, "resume", c.number())
	c.do("check")
}

// Whatever fails or dies after NCCL was suspended, its memory comes back, and nothing uses NCCL in between.
func TestNCCLIsResumedWhenThePauseIsTakenBack(t *testing.T) {
	c := startNCCL(t, "handle", ncclNew)
	c.do("all 2")
	c.spoiled("cuCheckpointProcessCheckpoint:1:2", "it goes on as before", "pause", c.number(), "--everything")
	c.goesOnWith(96)
	dies(t, "Lock:1", "pause", c.number(), "--everything")
	c.goesOnWith(96)
	for range 2 {
		require.Equal(t, "0 ", c.do("everything 5")) // from inside
		c.requireFree(128)
		require.Equal(t, "0 ", c.do("resume"))
		c.goesOnWith(96)
	}
	c.do("work")
	for range hermetic.Often(10, 3) {
		c.pause()
		before := c.do("cycles")
		time.Sleep(10 * time.Millisecond) // in which nothing happens
		require.Equal(t, before, c.do("cycles"), "no thread works while the program is paused")
		succeeds(t, "resume", c.number())
		require.Eventually(t, func() bool { return c.do("cycles") != before }, time.Minute, 5*time.Millisecond)
	}
	c.do("calm")
	c.goesOnWith(96)
	// Here there is nothing to pause but NCCL.
	require.Equal(t, "0 ", c.do("pause"))
	open := func() {
		t.Helper()
		c.comesToFree(120)
		c.do("reduce")
	}
	c.spoiled("cuCheckpointProcessCheckpoint:1:2", "it goes on as before", "pause", c.number(), "--everything")
	open()
	for _, at := range []string{"Lock", "Checkpoint"} {
		dies(t, at+":1", "pause", c.number(), "--everything")
		if at == "Checkpoint" { // the process is locked, and undoes its part when it is unlocked
			succeeds(t, "resume", c.number())
			c.goesOnWith(96)
			require.Equal(t, "0 ", c.do("pause"))
		}
		open()
	}
	require.Contains(t, c.pause(), "nothing to pause; NCCL 2.29.7: 2 communicators with 8.00 MiB suspended")
	c.requireFree(128)
	c.resume()
	c.goesOnWith(96)
}

// spreadRanks are two processes of a job with a communicator that has a rank in each.
type spreadRanks [2]*communicating

func (ranks spreadRanks) goOnWith(free int) {
	ranks[0].t.Helper()
	for _, r := range ranks {
		r.goesOnWith(free)
	}
}

// startSpread starts them, the second with more environment.
func startSpread(t *testing.T, second ...string) (ranks spreadRanks) {
	t.Helper()
	meetings := filepath.Join(t.TempDir(), "meetings")
	require.NoError(t, os.WriteFile(meetings, make([]byte, 4096), 0o600))
	ranks[0] = startNCCL(t, "handle", ncclNew, "FAKE_NCCL_SHARED="+meetings, "TORCHELASTIC_RUN_ID=spread")
	ranks[1] = ranks[0].beside(second...)
	for _, r := range ranks {
		r.do("ranks 1 2", "reduce")
	}
	return ranks
}

func spread(t *testing.T, what string, more ...string) string {
	t.Helper()
	return succeeds(t, append([]string{what, "--job", "spread"}, more...)...)
}

func TestRanksInSeveralProcessesAreSuspendedTogether(t *testing.T) {
	ranks := startSpread(t)
	asBefore := func(free int) {
		t.Helper()
		ranks[0].requireFree(free) // at once
		ranks.goOnWith(free)
	}
	for range 3 {
		out := spread(t, "pause", "--everything")
		for _, r := range ranks {
			require.Regexp(t, `(?m)^`+r.number()+`: paused, 24\.00 MiB freed in .* s, 8\.00 MiB without contents; `+
				`NCCL 2\.29\.7: 1 communicator with 4\.00 MiB suspended; the rest by the driver in `, out)
		}
		ranks[0].requireFree(128)
		require.NotContains(t, spread(t, "resume"), "NCCL")
		asBefore(72)
	}
	// One communicator has ranks in other processes, one in each has all its ranks there, and a third is split from the
	// first.
	for _, r := range ranks {
		r.do("ranks 1 3", "all 2", "split")
	}
	out := spread(t, "pause", "--everything")
	require.Equal(t, 2, strings.Count(out, "6 communicators with 24.00 MiB suspended; "+
		"NCCL 2.29.7: 2 communicators with 8.00 MiB left to the driver (ncclCommSuspend waits for all ranks, "+
		"and some are in other processes); the rest by the driver"), out)
	ranks[0].requireFree(128)
	spread(t, "resume")
	asBefore(72 - 7*8)

	// While they work.
	for _, r := range ranks {
		r.do("destroy 7", "work")
	}
	for range hermetic.Often(10, 3) {
		spread(t, "pause", "--everything")
		ranks[0].requireFree(128)
		before := ranks[1].do("cycles")
		spread(t, "resume")
		require.Eventually(t, func() bool { return ranks[1].do("cycles") != before }, time.Minute, 5*time.Millisecond)
	}
	for _, r := range ranks {
		r.do("calm")
	}
	asBefore(72)
	// Where the driver cannot, NCCL's part is still freed.
	ranks[1].do("export")
	out = spread(t, "pause", "--everything", "--timeout", "10") // half waits for ranks that did not do the same
	require.Equal(t, 2, strings.Count(out, "1 communicator with 4.00 MiB suspended; the rest"), out)
	require.Contains(t, out,
		"stays: the driver's checkpoint would lose this process: it has called cudaIpcGetMemHandle")
	require.Contains(t, out, "stays: the driver takes all ranks or none, and of process "+ranks[1].number()+
		": the driver's checkpoint would lose")
	require.NotContains(t, out, "without --everything")
	ranks[0].requireFree(127)
	spread(t, "resume")
	asBefore(71)
}

// Ranks of one host share memory. NCCL frees that too, and the driver can then checkpoint the processes.
func TestMemoryThatRanksShareGoesWithNCCL(t *testing.T) {
	ranks := startSpread(t, "FAKE_NCCL_EXPORTS=1") // the second one does
	ranks[1].refused("it has called cuMem", "pause", ranks[1].number(), "--everything")
	for range 3 {
		out := spread(t, "pause", "--everything")
		require.Equal(t, 2, strings.Count(out, "1 communicator with 4.00 MiB suspended; the rest by the driver"), out)
		ranks[0].requireFree(128)
		spread(t, "resume")
		ranks[0].requireFree(70)
		ranks.goOnWith(70)
	}
	for _, r := range ranks {
		r.do("destroy 1")
	}
	succeeds(t, "pause", ranks[1].number(), "--everything")
	succeeds(t, "resume", ranks[1].number())
}

// A process whose communicator is on its second device.
func TestRanksOnOtherDevices(t *testing.T) {
	c := startNCCL(t, "handle", ncclNew, "CUDASIM_DEVICES=2")
	c.do("device 1", "ranks 1 1", "device 0")
	require.Contains(t, c.pause(), "NCCL 2.29.7: 1 communicator with 4.00 MiB suspended")
	c.requireFree(128)
	c.resume()
}

// A resume of one rank does not wait for the others, but its program does.
func TestRanksAreResumedOneByOne(t *testing.T) {
	hermetic.Thorough(t)
	ranks := startSpread(t)
	spread(t, "pause", "--everything")
	require.Contains(t, succeeds(t, "resume", ranks[0].number()),
		"NCCL takes its memory again when the other processes with ranks of its communicators are resumed, too")
	require.Contains(t, ranks[0].said(), "NCCL takes its memory again when")
	before := ranks[0].do("cycles")
	ranks[0].do("work")
	time.Sleep(50 * time.Millisecond) // in which nothing happens
	require.Equal(t, before, ranks[0].do("cycles"), "it waits")
	require.Contains(t, succeeds(t, "resume", ranks[0].number()), "NCCL takes its memory again when") // again
	require.NotContains(t, succeeds(t, "resume", ranks[1].number()), "NCCL")
	require.Eventually(t, func() bool { return ranks[0].do("cycles") != before }, time.Minute, 5*time.Millisecond)
	ranks[0].do("calm")
	ranks[0].requireFree(72)
	ranks[1].do("reduce")
	spread(t, "pause", "--everything", "--timeout", "10") // half waits for ranks that did not do the same
	ranks[0].requireFree(128)
	spread(t, "resume")
}

// Whatever ends or fails while ranks are suspended together, the living ones go on.
func TestRanksThatAreNotSuspendedTogether(t *testing.T) {
	hermetic.Thorough(t)
	pause := []string{"pause", "--job", "spread", "--everything"}
	t.Run("the command", func(t *testing.T) {
		ranks := startSpread(t)
		for _, at := range []string{"Lock", "Checkpoint"} {
			dies(t, at+":1", pause...)
			if at == "Checkpoint" {
				spread(t, "resume")
			}
			ranks.goOnWith(72)
		}
		stderr := ranks[0].spoiled("cuCheckpointProcessCheckpoint:2:2", "it goes on as before", pause...)
		require.Equal(t, 2, strings.Count(stderr, "it goes on as before"), stderr)
		ranks.goOnWith(72)
		for i := range 12 { // interrupted at any moment
			if cut(t, time.Duration(i)*5*time.Millisecond, os.Interrupt, pause...).Success() {
				spread(t, "resume")
			}
			ranks.goOnWith(72)
		}
	})
	t.Run("a client that leaves as it asks the second", func(t *testing.T) {
		ranks := startSpread(t)
		first, err := client.Dial(ranks[0].Process.Pid)
		require.NoError(t, err)
		second, err := net.Dial("unix", filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms", ranks[1].number()+".sock"))
		require.NoError(t, err)
		timeout := 60.0
		hold := control.SteerRequest{Version: control.Version, ID: 1, Op: control.Pause, Hold: true, Timeout: &timeout,
			NCCL: &control.NCCL{}}
		reply, err := first.Do(context.Background(), hold)
		require.NoError(t, err)
		require.Len(t, reply.Communicators, 1, reply.Error)
		_, err = second.Write(control.Line(hold))
		require.NoError(t, err)
		line, err := bufio.NewReader(second).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, `"ok":true`)

		together := hold
		together.Hold, together.NCCL = false, &control.NCCL{Together: []string{reply.Communicators[0].Name},
			Until: float64(time.Now().Add(time.Minute).UnixMicro()) / 1e6}
		stop(t, ranks[1].Process) // it will see the request and the connection's end together
		_, err = second.Write(control.Line(together))
		require.NoError(t, err)
		require.NoError(t, second.Close())
		require.NoError(t, ranks[1].Process.Signal(syscall.SIGCONT))
		reply, err = first.Do(context.Background(), together)
		require.NoError(t, err)
		require.True(t, reply.OK, reply.Error)
		require.Contains(t, reply.NCCL, "1 communicator with 4.00 MiB suspended")
		first.Close()
		ranks.goOnWith(72)
	})
	t.Run("a rank that ends", func(t *testing.T) {
		ranks := startSpread(t, "FAKE_NCCL=hang")
		go func() {
			for !strings.Contains(ranks[1].said(), "ncclCommSuspend hangs") {
				time.Sleep(time.Millisecond)
			}
			_ = ranks[1].Process.Kill()
		}()
		fails(t, exitNo, "ncclCommSuspend has not come back within 5s for 1 communicator of NCCL, which may be of no "+
			"use now; all else is as before, and the program runs on (1 of them with ranks in other processes, one of "+
			"which has ended, or does not run)", append(pause, "--timeout", "5")...)
		ranks[0].do("check", "reduce")
		require.Equal(t, "0", ranks[0].do("stats"))
		ranks[0].refused("has not come back from ncclCommSuspend within 1s",
			"pause", ranks[0].number(), "--timeout", "1")
		require.Equal(t, "0 ", ranks[0].do("pause"), "by itself")
		require.Equal(t, "0 ", ranks[0].do("resume"))
		ranks[0].do("check")
	})
	t.Run("a rank that does not run", func(t *testing.T) {
		ranks := startSpread(t)
		require.NoError(t, ranks[1].Process.Signal(syscall.SIGSTOP))
		_, stderr, code := command(t, append(pause, "--timeout", "1")...)
		require.NotZero(t, code)
		require.Contains(t, stderr, "left as it was")
		require.NoError(t, ranks[1].Process.Signal(syscall.SIGCONT))
		ranks.goOnWith(72)
		spread(t, "pause", "--everything")
		ranks[0].requireFree(128)
		spread(t, "resume")
		ranks.goOnWith(72)
	})
	t.Run("a rank that cannot", func(t *testing.T) {
		ranks := startSpread(t, "FAKE_NCCL=fail")
		fails(t, exitNo, "ncclCommSuspend has not come back within 5s", append(pause, "--timeout", "5")...)
		ranks.goOnWith(72)
	})
}

func TestMemoryThatNCCLHasRegistered(t *testing.T) {
	hermetic.Thorough(t)
	c := startNCCL(t, "handle", ncclNew)
	c.do("all 1")
	const words = " is registered with NCCL 2.29.7 by ncclCommRegister, and a registration does not survive a pause: " +
		"call ncclCommDeregister first, or exclude the memory from what is pausable (TMS_PAUSE_FORCE=1 pauses anyway)"
	goes := func(more ...string) {
		t.Helper()
		succeeds(t, append([]string{"pause", c.number()}, more...)...)
		c.resume()
	}
	c.do("register 15")
	c.refused(words+"; nothing has changed, and the program runs on", "pause", c.number())
	c.refused(words, "pause", c.number(), "--everything")
	require.Contains(t, c.do("pause"), words)
	require.Contains(t, c.do("pause weights"), words)
	require.Equal(t, "0 ", c.do("pause cache"), "which is not registered")
	succeeds(t, "pause", c.number(), "--tag", "cache")
	succeeds(t, "resume", c.number(), "--tag", "cache") // the program's own resume would wait for that
	require.Equal(t, "0 ", c.do("resume"))
	c.do("deregister")
	goes()
	c.do("register 16") // NCCL_LOCAL_REGISTER=0: NCCL registers nothing
	goes()
	c.do("window")
	c.refused("by ncclCommWindowRegister, and a registration does not survive a pause: call ncclCommWindowDeregister "+
		"first", "pause", c.number())
	goes("--force")
	c.do("close")
	goes()
	c.do("register 0", "destroy 1") // with its registrations
	succeeds(t, "pause", c.number())
	forced := startNCCL(t, "handle", ncclNew, "TMS_PAUSE_FORCE=1")
	forced.do("all 1", "register 0")
	require.Equal(t, "0 ", forced.do("pause"))
}

// More registrations than the library notes keep memory from a pause only where NCCL may have registered that memory.
func TestMoreRegistrationsThanAreNoted(t *testing.T) {
	c := startNCCL(t, "linked", ncclNew)
	c.do("all 1", "registers 5000 other") // which is not pausable
	succeeds(t, "pause", c.number())
	c.resume()
	c.do("register 15")
	c.refused(" is registered with NCCL 2.29.7 by ncclCommRegister", "pause", c.number())
	c.do("deregister")
	succeeds(t, "pause", c.number())
	c.resume()
	c.do("registers 5000")
	c.refused(" is registered with NCCL 2.29.7 by ncclCommRegister", "pause", c.number())
	require.Contains(t, c.do("pause cache"), "more pausable memory was registered with NCCL 2.29.7", "perhaps this too")
}

func TestCollectivesInGraphsAreWarnedOf(t *testing.T) {
	const words = "NCCL 2.29.7 used the memory at 0x"
	for _, test := range []struct {
		setting string
		warned  int
	}{{"", 1}, {"NCCL_GRAPH_REGISTER=1", 1}, {"NCCL_GRAPH_REGISTER=0", 0}} {
		c := startNCCL(t, "handle", ncclNew, test.setting)
		c.do("all 1")
		require.Equal(t, "0 ", c.do("pause"))
		require.Equal(t, "0 ", c.do("resume"))
		require.NotContains(t, c.said(), words)
		c.do("capture")
		for range 2 {
			succeeds(t, "pause", c.number())
			c.resume()
		}
		require.Equal(t, test.warned, strings.Count(c.said(), words), c.said())
		if test.warned > 0 {
			require.Regexp(t, "in a CUDA graph, by ncclAllReduce, and has perhaps registered it there, which does not "+
				"survive a pause: that graph may hang. Set NCCL_GRAPH_REGISTER=0 before the start, or capture it "+
				"again after a resume", c.said())
		}
	}
}

// Threads make, use and destroy communicators, and register memory, while everything is paused and resumed.
func TestNCCLIsUsedByAll(t *testing.T) {
	hermetic.Thorough(t)
	c := startNCCL(t, "default", ncclNew)
	c.do("all 2", "work", "churn")
	for range hermetic.Often(20, 6) {
		out, stderr, code := command(t, "pause", c.number(), "--everything")
		require.True(t, code == 0 || strings.Contains(stderr, "is registered with NCCL"), stderr)
		if code == 0 {
			require.Contains(t, out, "NCCL 2.29.7")
			c.requireFree(128)
		}
		succeeds(t, "resume", c.number())
	}
	c.do("calm")
	c.goesOnWith(96)
}

// While NCCL waits for a rank in another process to take its memory again, a pause takes what the program has.
func TestAPauseWhileNCCLWaitsForRanks(t *testing.T) {
	ranks := startSpread(t)
	spread(t, "pause", "--everything")
	require.Contains(t, succeeds(t, "resume", ranks[0].number()), "NCCL takes its memory again when")
	require.Contains(t, succeeds(t, "pause", "--timeout", "20", ranks[0].number()), "freed")
	ranks[0].refused("NCCL is being resumed", "pause", "--timeout", "2", ranks[0].number(), "--everything")
	spread(t, "resume")
	ranks.goOnWith(72)
}
