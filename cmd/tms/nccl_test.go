package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// communicating is a program with 24 MiB of pausable weights that uses NCCL, and another that sees what is free of the
// 128 MiB of their device. Each rank of a communicator holds 4 MiB.
type communicating struct {
	*whole
	libraries string
	stderr    *os.File
}

// said is what the program has written to stderr.
func (c *communicating) said() string {
	text, err := os.ReadFile(c.stderr.Name())
	require.NoError(c.t, err)
	return string(text)
}

func buildC(t *testing.T, arguments ...string) {
	t.Helper()
	output, err := exec.Command("cc", append([]string{"-std=gnu11", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"}, arguments...)...).CombinedOutput()
	require.NoError(t, err, "%s", output)
}

const (
	ncclOld = "22705" // has no ncclCommSuspend
	ncclNew = "22907"
)

func buildNCCL(t *testing.T, version, library string) {
	t.Helper()
	buildC(t, "-shared", "-fPIC", "-DVERSION="+version, "-Wl,-soname,libnccl.so.2", "-o", library,
		filepath.Join("..", "..", "preload", "testdata", "libnccl.c"), "-L"+built(t, "sim"), "-l:libcudart.so.13")
}

// startNCCL starts it on its way to an NCCL of a version.
func startNCCL(t *testing.T, way, version string, environment ...string) *communicating {
	t.Helper()
	c := &communicating{libraries: t.TempDir()}
	library, program := filepath.Join(c.libraries, "libnccl.so.2"), filepath.Join(c.libraries, "program")
	sources := filepath.Join("..", "..", "preload", "testdata")
	cudart := []string{"-L" + built(t, "sim"), "-l:libcudart.so.13", "-ldl"}
	buildNCCL(t, version, library)
	host := append([]string{filepath.Join(sources, "nccl.c"), "-Wl,-z,dynamic-undefined-weak"}, cudart...)
	linked := append([]string{"-DLINKED"}, append(host, "-Wl,-rpath,"+c.libraries, "-L"+c.libraries, "-l:libnccl.so.2")...)
	arguments := []string{way, library}
	switch way {
	case "linked":
		buildC(t, append(linked, "-o", program)...)
	case "local":
		arguments[1] = filepath.Join(c.libraries, "libguest.so")
		buildC(t, append(linked, "-shared", "-fPIC", "-o", arguments[1])...)
		fallthrough
	default:
		buildC(t, append(host, "-o", program)...)
	}
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim")) // of the command, which asks the driver too
	shared := append(os.Environ(), "CUDASIM_SHARED="+filepath.Base(os.Getenv("TMPDIR")), "CUDASIM_MEMORY=128M", "TMS_COMMAND="+tms,
		"TMS_CONTROL=1")
	c.whole = &whole{steered: &steered{t: t, Cmd: exec.Command(program, arguments...)}}
	c.Env = append(append(shared, "LD_PRELOAD="+built(t, "lib", "libtms.so")+":"+built(t, "lib", "libtms_reach.so")), environment...)
	var err error
	c.stderr, err = os.Create(filepath.Join(c.libraries, "stderr"))
	require.NoError(t, err)
	c.Stderr = c.stderr
	t.Cleanup(func() {
		t.Log(c.said())
		_ = c.stderr.Close()
	})
	c.start()
	c.pid = strconv.Itoa(c.Process.Pid)
	c.other = startSteered(t, steeredProgram(t), append(shared[len(os.Environ()):], "TMS_CONTROL=0")...)
	c.other.do("pause")
	c.requireFree(104)
	return c
}

func (s *steered) start() {
	s.t.Helper()
	stdin, err := s.StdinPipe()
	require.NoError(s.t, err)
	stdout, err := s.StdoutPipe()
	require.NoError(s.t, err)
	s.say, s.answers = stdin, bufio.NewReader(stdout)
	require.NoError(s.t, s.Start())
	s.t.Cleanup(func() {
		_ = s.Process.Kill()
		_ = s.Wait()
	})
	s.do("allocate")
	s.do("serve") // it returns when the process listens
}

// pause has the command pause everything, and returns what it says.
func (c *communicating) pause(more ...string) string {
	c.t.Helper()
	out, stderr, code := command(c.t, append([]string{"pause", c.pid, "--everything"}, more...)...)
	require.Zero(c.t, code, stderr)
	return out
}

func (c *communicating) resume() {
	c.t.Helper()
	_, stderr, code := command(c.t, "resume", c.pid)
	require.Zero(c.t, code, stderr)
	c.do("check")
	c.do("reduce")
}

func TestCommunicatorsAreSuspendedWithEverything(t *testing.T) {
	for _, way := range []string{"linked", "handle", "default", "local"} {
		t.Run(way, func(t *testing.T) {
			c := startNCCL(t, way, ncclNew)
			c.do("all 2")
			c.do("ranks 3 3")
			c.do("reduce")
			c.requireFree(104 - 20)
			for range 2 {
				require.Regexp(t, `paused, 24.00 MiB freed in .* s; NCCL 2\.29\.7: 5 communicators with 20\.00 MiB suspended; the rest by the driver`,
					c.pause())
				c.requireFree(128)
				c.do("fork")
				c.resume()
				c.requireFree(104 - 20)
			}
			// Those of a split, and without those that were left.
			c.do("split")
			require.Contains(t, c.pause(), "NCCL 2.29.7: 10 communicators with 40.00 MiB suspended")
			c.resume()
			c.do("destroy 9")
			require.Contains(t, c.pause(), "NCCL 2.29.7: 1 communicator with 4.00 MiB left to the driver (ncclCommSuspend waits for all ranks")
			c.requireFree(128)
			c.resume()
			c.do("destroy 1")
			require.NotContains(t, c.pause(), "NCCL")
			_, stderr, code := command(t, "resume", c.pid)
			require.Zero(t, code, stderr)
			c.requireFree(104)
		})
	}
}

// What cannot be suspended is left to the driver, and said; the pause is made all the same.
func TestCommunicatorsThatStay(t *testing.T) {
	for _, test := range []struct{ name, version, make, environment, words string }{
		{"no function", ncclOld, "all 2", "",
			"NCCL 2.27.5: 2 communicators left to the driver (this version has no ncclCommSuspend, which came with 2.29.7)"},
		{"ranks elsewhere", ncclNew, "ranks 1 2", "",
			"NCCL 2.29.7: 1 communicator with 4.00 MiB left to the driver (ncclCommSuspend waits for all ranks, and some are in other processes)"},
		{"a failure", ncclNew, "all 2", "FAKE_NCCL=fail",
			"NCCL 2.29.7: 2 communicators with 8.00 MiB left to the driver (ncclCommSuspend has failed)"},
		{"not blocking", ncclNew, "all 2", "NCCL_COMM_BLOCKING=0",
			"NCCL 2.29.7: 2 communicators with 8.00 MiB left to the driver (non-blocking ones go on with threads of NCCL's own)"},
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
		other := filepath.Join(t.TempDir(), "libnccl.so.2")
		buildNCCL(t, ncclNew, other)
		c.do("all 2")
		c.do("other " + other)
		c.do("all 1")
		require.Contains(t, c.pause(), "NCCL 2.27.5: 2 communicators left to the driver (this version has no ncclCommSuspend, which came with 2.29.7); "+
			"NCCL 2.29.7: 1 communicator with 4.00 MiB suspended;")
		c.resume()
	})
	t.Run("memory that is shared", func(t *testing.T) {
		c := startNCCL(t, "linked", ncclNew)
		c.do("ranks 1 2")
		c.do("export")
		c.refused("it has called cudaIpcGetMemHandle, and managed memory, multicast objects, or memory that processes share cannot be checkpointed "+
			"(NCCL 2.29.7 shares memory between ranks on one host); without --everything", "pause", c.pid, "--everything")
		c.do("reduce")
	})
	t.Run("inside", func(t *testing.T) {
		c := startNCCL(t, "linked", ncclNew)
		c.do("all 2")
		c.do("inside 3000")
		require.Contains(t, c.pause(), "2 communicators left to the driver (threads of the program are inside NCCL)")
		c.resume()
	})
}

func TestASuspendThatHangs(t *testing.T) {
	c := startNCCL(t, "linked", ncclNew, "FAKE_NCCL=hang3000")
	c.do("all 2")
	c.refused("ncclCommSuspend has not come back within 1s for 2 communicators of NCCL, which may be of no use now; all else is as before, "+
		"and the program runs on", "pause", c.pid, "--everything", "--timeout", "1")
	c.do("check")
	require.Equal(t, "0", c.do("stats"))
	c.refused("has not come back from ncclCommSuspend within 1s", "pause", c.pid, "--timeout", "1")
	time.Sleep(2 * time.Second) // then it is resumed at once
	require.Eventually(t, func() bool { return c.other.do("free") == "96" }, 10*time.Second, 10*time.Millisecond)
	c.do("reduce")
	require.Contains(t, c.pause(), "NCCL 2.29.7: 2 communicators with 8.00 MiB suspended")
	c.resume()
}

func TestAResumeOfNCCLThatFails(t *testing.T) {
	c := startNCCL(t, "linked", ncclNew, "FAKE_NCCL=lose")
	c.do("all 2")
	require.Contains(t, c.pause(), "2 communicators with 8.00 MiB suspended")
	c.refused("ncclCommResume has failed for 2 communicators of NCCL, which can be used no more; all else is resumed", "resume", c.pid)
	c.do("check")
	require.Equal(t, "0", c.do("stats"))
	require.Contains(t, c.pause(), "2 communicators left to the driver (suspended before, and not resumed since)")
	_, stderr, code := command(t, "resume", c.pid)
	require.Zero(t, code, stderr)
	c.do("check")
}

// Whatever fails or dies after NCCL was suspended, its memory is back, and it is not used in between.
func TestNCCLIsResumedWhenThePauseIsTakenBack(t *testing.T) {
	c := startNCCL(t, "handle", ncclNew)
	c.do("all 2")
	asBefore := func() {
		t.Helper()
		require.Eventually(t, func() bool { return c.other.do("free") == "96" && c.do("stats") == "0" }, 10*time.Second, 10*time.Millisecond)
		c.do("check")
		c.do("reduce")
	}
	t.Setenv("CUDASIM_FAIL", "cuCheckpointProcessCheckpoint:1:2")
	c.refused("it goes on as before", "pause", c.pid, "--everything")
	t.Setenv("CUDASIM_FAIL", "")
	asBefore()
	killed := exec.Command(tms, "pause", c.pid, "--everything")
	killed.Env = append(os.Environ(), "CUDASIM_FAIL=cuCheckpointProcessLock:1:kill")
	require.ErrorContains(t, killed.Run(), "signal: killed")
	asBefore()
	for range 2 {
		require.Equal(t, "0 ", c.do("everything 5")) // from inside
		c.requireFree(128)
		require.Equal(t, "0 ", c.do("resume"))
		asBefore()
	}
	c.do("work")
	for range 10 {
		c.pause()
		before := c.do("cycles")
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, before, c.do("cycles"), "nobody works meanwhile")
		_, stderr, code := command(t, "resume", c.pid)
		require.Zero(t, code, stderr)
		require.Eventually(t, func() bool { return c.do("cycles") != before }, 10*time.Second, time.Millisecond)
	}
	c.do("calm")
	asBefore()
	// Where there is nothing to pause but NCCL.
	require.Equal(t, "0 ", c.do("pause"))
	open := func() {
		t.Helper()
		require.Eventually(t, func() bool { return c.other.do("free") == "120" && c.do("stats") == "0" }, 10*time.Second, 10*time.Millisecond)
		c.do("reduce")
	}
	t.Setenv("CUDASIM_FAIL", "cuCheckpointProcessCheckpoint:1:2")
	c.refused("it goes on as before", "pause", c.pid, "--everything")
	t.Setenv("CUDASIM_FAIL", "")
	open()
	for _, at := range []string{"Lock", "Checkpoint"} {
		killed := exec.Command(tms, "pause", c.pid, "--everything")
		killed.Env = append(os.Environ(), "CUDASIM_FAIL=cuCheckpointProcess"+at+":1:kill")
		require.ErrorContains(t, killed.Run(), "signal: killed")
		if at == "Checkpoint" { // the process is locked, and undoes its part when it is not
			time.Sleep(100 * time.Millisecond)
			_, stderr, code := command(t, "resume", c.pid)
			require.Zero(t, code, stderr)
			asBefore()
			require.Equal(t, "0 ", c.do("pause"))
		}
		open()
	}
	require.Contains(t, c.pause(), "nothing to pause; NCCL 2.29.7: 2 communicators with 8.00 MiB suspended")
	c.requireFree(128)
	c.resume()
	asBefore()
}

func TestMemoryThatNCCLHasRegistered(t *testing.T) {
	c := startNCCL(t, "handle", ncclNew)
	c.do("all 1")
	const words = " is registered with NCCL 2.29.7 by ncclCommRegister, and a registration does not survive a pause: call ncclCommDeregister first, " +
		"or exclude the memory from what is pausable (TMS_PAUSE_FORCE=1 pauses all the same)"
	goes := func() {
		t.Helper()
		_, stderr, code := command(t, "pause", c.pid)
		require.Zero(t, code, stderr)
		c.resume()
	}
	c.do("register 15")
	c.refused(words+"; nothing has changed, and the program runs on", "pause", c.pid)
	c.refused(words, "pause", c.pid, "--everything")
	require.Contains(t, c.do("pause"), words)
	require.Contains(t, c.do("pause weights"), words)
	require.Equal(t, "0 ", c.do("pause cache"), "which is not registered")
	_, stderr, code := command(t, "pause", c.pid, "--tag", "cache")
	require.Zero(t, code, stderr)
	require.Equal(t, "0 ", c.do("resume"))
	c.do("deregister")
	goes()
	c.do("register 16") // NCCL_LOCAL_REGISTER=0: it takes none
	goes()
	c.do("window")
	c.refused("by ncclCommWindowRegister, and a registration does not survive a pause: call ncclCommWindowDeregister first", "pause", c.pid)
	_, stderr, code = command(t, "pause", c.pid, "--force")
	require.Zero(t, code, stderr)
	c.resume()
	c.do("close")
	goes()
	c.do("register 0")
	c.do("destroy 1") // with what is registered
	_, stderr, code = command(t, "pause", c.pid)
	require.Zero(t, code, stderr)
	forced := startNCCL(t, "handle", ncclNew, "TMS_PAUSE_FORCE=1")
	forced.do("all 1")
	forced.do("register 0")
	require.Equal(t, "0 ", forced.do("pause"))
}

// Once, of memory that is paused, where NCCL may have registered it.
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
			_, stderr, code := command(t, "pause", c.pid)
			require.Zero(t, code, stderr)
			c.resume()
		}
		require.Equal(t, test.warned, strings.Count(c.said(), words), c.said())
		if test.warned > 0 {
			require.Regexp(t, "in a CUDA graph, by ncclAllReduce, and has perhaps registered it there, which does not survive a pause: that graph may "+
				"hang. Set NCCL_GRAPH_REGISTER=0 before the start, or capture it anew after a resume", c.said())
		}
	}
}

// Threads make communicators and leave them, register memory and use them, while everything is paused and resumed.
func TestNCCLIsUsedByAll(t *testing.T) {
	c := startNCCL(t, "default", ncclNew)
	c.do("all 2")
	c.do("work")
	c.do("churn")
	for range 20 {
		out, stderr, code := command(t, "pause", c.pid, "--everything")
		require.True(t, code == 0 || strings.Contains(stderr, "is registered with NCCL"), stderr)
		if code == 0 {
			require.Contains(t, out, "NCCL 2.29.7")
			c.requireFree(128)
		}
		_, stderr, code = command(t, "resume", c.pid)
		require.Zero(t, code, stderr)
	}
	c.do("calm")
	require.Eventually(t, func() bool { return c.other.do("free") == "96" }, 10*time.Second, 10*time.Millisecond)
	c.do("check")
	c.do("reduce")
}
