package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/vmm/stats"
)

// whole is a process with 24 MiB of weights, 8 of cache and 40 that are not pausable, and another that sees how much of
// their device's 128 MiB is free.
type whole struct {
	*steered
	other *steered
}

func startWhole(t *testing.T, environment ...string) *whole {
	t.Helper()
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim")) // for the command, which also asks the driver
	t.Setenv("CUDASIM_SHARED", filepath.Base(os.Getenv("TMPDIR")))
	program := steeredProgram(t)
	all := []string{"CUDASIM_MEMORY=128M", "TMS_COMMAND=" + tms}
	w := &whole{steered: startSteered(t, program, append(all, environment...)...)}
	w.do("own 40")
	w.other = startSteered(t, program, append(all, "TMS_CONTROL=0")...)
	w.other.do("pause")
	w.requireFree(56)
	return w
}

// requireFree checks how many MiB others could have.
func (w *whole) requireFree(mebibytes int) {
	w.t.Helper()
	require.Equal(w.t, mebibytes, w.other.count("free"))
}

// comesBack waits until the process has resumed all of its memory itself, with its contents.
func (w *whole) comesBack() {
	w.t.Helper()
	isPaused := func(t stats.Tag) bool { return t.PausedBytes > 0 }
	require.Eventually(w.t, func() bool {
		state, err := status(w.Process.Pid, time.Minute)
		return err == nil && !slices.ContainsFunc(state.Stats.Devices, func(d stats.Device) bool {
			return slices.ContainsFunc(d.Tags, isPaused)
		})
	}, time.Minute, 10*time.Millisecond)
	w.comesToFree(56)
}

// comesToFree waits until others could have so much, and the process's calls go on.
func (w *whole) comesToFree(mebibytes int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.other.count("free") == mebibytes && w.do("stats") == "0" },
		time.Minute, 10*time.Millisecond)
}

// asBefore checks that the process has everything that it had, and can use it.
func (w *whole) asBefore() {
	w.t.Helper()
	w.do("check")
	w.requireFree(56)
	require.Equal(w.t, "0", w.do("stats"))
}

func (w *whole) refused(words string, arguments ...string) (stderr string) {
	w.t.Helper()
	return fails(w.t, exitNo, words, arguments...)
}

// spoiled is the same where the driver fails as planned.
func (w *whole) spoiled(planned, words string, arguments ...string) (stderr string) {
	w.t.Helper()
	w.t.Setenv("CUDASIM_FAIL", planned)
	stderr = w.refused(words, arguments...)
	w.t.Setenv("CUDASIM_FAIL", "")
	return stderr
}

// pause pauses everything, also without a gate.
func (w *whole) pause() (stdout string) {
	w.t.Helper()
	return succeeds(w.t, "pause", w.number(), "--everything", "--force")
}

func (w *whole) resumed() {
	w.t.Helper()
	succeeds(w.t, "resume", w.number())
	w.asBefore()
}

func TestEverythingIsPausedAndResumed(t *testing.T) {
	w := startWhole(t)
	for range 3 {
		require.Regexp(t, `^\d+: paused, 32.00 MiB freed in .* s, 8\.00 MiB without contents; `+
			`the rest by the driver in \d+\.\d\d s\n$`, w.pause())
		w.requireFree(128)
		require.Regexp(t, w.number()+` .*weights +24.0 MiB +0 out \d+s +24.0 MiB host`, succeeds(t, "ps"))
		require.Equal(t, "1", w.do("stats"), "without a call of the driver")
		require.Contains(t, w.pause(), "nothing to pause")
		w.refused("everything of this process is paused", "pause", w.number(), "--force")
		w.refused("everything of this process is paused", "pause", w.number(), "--tag", "weights", "--to", "disk")
		require.Regexp(t, `resumed, 32.00 MiB in .* s; the driver's part in`, succeeds(t, "resume", w.number()))
		w.asBefore()
		require.Contains(t, succeeds(t, "resume", w.number()), "nothing to resume")
	}
}

// A status request at the start of a pause of everything does not wait for the resume, which makes one itself.
func TestStatusBesidePausesOfEverything(t *testing.T) {
	w := startWhole(t, reaching(t))
	done, ended := make(chan bool), make(chan error)
	go func() {
		var failed error
		for asks := true; asks && failed == nil; {
			_, failed = status(w.Process.Pid, time.Minute)
			select {
			case asks = <-done:
			default:
			}
		}
		ended <- failed
	}()
	for range hermetic.Often(200, 6) {
		succeeds(t, "pause", w.number(), "--everything")
		w.resumed()
	}
	close(done)
	require.NoError(t, <-ended)
}

// Wherever the command dies, the process is as before, or a resume makes it so.
func TestACommandThatDiesLeavesWhatAResumeGoesOnFrom(t *testing.T) {
	hermetic.Thorough(t)
	w := startWhole(t)
	pause := []string{"pause", w.number(), "--everything", "--force"}
	dies(t, "GetState:1", pause...)
	w.asBefore()
	dies(t, "Lock:1", pause...) // after our pause, which the process itself undoes
	w.comesBack()
	w.do("check")
	succeeds(t, "pause", w.number(), "--force") // it can be paused like others
	w.resumed()
	dies(t, "Checkpoint:1", pause...) // while it is locked
	command(t, "ps")                  // answers
	w.resumed()
	dies(t, "GetState:2", pause...) // checkpointed, and not kept
	w.requireFree(128)
	w.resumed()
	for _, at := range []string{"GetState:1", "Restore:1", "GetState:2", "Unlock:1", "GetState:3"} {
		w.pause()
		dies(t, at, "resume", w.number())
		w.resumed()
	}
}

func TestWhatFailsIsTakenBack(t *testing.T) {
	w := startWhole(t)
	w.do("pause cache") // by the program: it stays paused
	fail := func(planned, words string) {
		t.Helper()
		w.spoiled(planned, words, "pause", w.number(), "--everything", "--force", "--timeout", "1")
	}
	for planned, words := range map[string]string{
		"cuCheckpointProcessGetState:1:999": "unknown error (999)",
		"cuCheckpointProcessLock:1:600":     "has not ended within 1s",
		"cuCheckpointProcessLock:1:999":     "unknown error (999); it goes on as before",
		"cuCheckpointProcessCheckpoint:1:2": "out of memory (2); it goes on as before",
		"cuCheckpointProcessCheckpoint:1:801": "managed memory, memory shared with other processes, or " +
			"a part of a GPU (MIG); it goes on as before",
		"cuCheckpointProcessGetState:2:999": "it goes on as before",
	} {
		fail(planned, words)
		w.do("check")
		w.requireFree(64) // the cache stays paused
		require.Equal(t, "0", w.do("stats"))
	}
	// The command says what it cannot undo, and a resume undoes it.
	fail("cuCheckpointProcessCheckpoint:1:2,cuCheckpointProcessUnlock:1:999",
		"its CUDA calls wait; tms resume "+w.number()+" tries again")
	w.resumed()
	fail("cuCheckpointProcessGetState:2:999,cuCheckpointProcessRestore:1:999", "its CUDA calls wait")
	w.requireFree(128)
	w.resumed()
}

// What the driver has is not forgotten because another client undoes a pause that is not its own.
func TestAnotherClientsUndoLeavesItWithTheDriver(t *testing.T) {
	w := startWhole(t, "MASTER_ADDR=here", "MASTER_PORT=1")
	w.pause()
	const words = "everything of this process is paused, the driver's part too"
	w.refused(words, "pause", "--job", "here:1", "--force", "--timeout", "1") // it then undoes
	require.Equal(t, "1", w.do("stats"))
	w.refused(words, "pause", w.number(), "--force")
	w.resumed()
}

// The driver is never asked to restore a process for which there is too little memory: it would lose it.
func TestAResumeWithoutMemory(t *testing.T) {
	w := startWhole(t)
	w.pause()
	w.other.do("hog")
	const words = "other processes have the memory that the driver needs for it: GPU 0 has 0 bytes free, and 41.00 MiB " +
		"are needed (40.00 MiB that the driver took, and a margin); it stays paused, and nothing is lost"
	t.Setenv("CUDASIM_FAIL", "cuCheckpointProcessRestore:1:kill") // it is not called
	for range 2 {
		w.refused(words, "resume", w.number())
	}
	w.refused(words, "resume", w.number(), "--wait", "50ms")
	require.Contains(t, w.do("within 0"), "800 others keep this program paused: tms pause (", "from inside")
	t.Setenv("CUDASIM_FAIL", "")
	waiting := exec.Command(tms, "resume", w.number(), "--wait", "60")
	waiting.Stderr = os.Stderr
	require.NoError(t, waiting.Start())
	require.Eventually(t, func() bool { return locked(t, waiting.Process.Pid) }, time.Minute, 5*time.Millisecond)
	w.other.do("unhog")
	require.NoError(t, waiting.Wait())
	w.asBefore()
	// The driver's part finds memory, and ours does not.
	w.pause()
	w.other.do("own 70")
	w.refused("GPU 0 has 18.00 MiB free and 32.00 MiB are needed", "resume", w.number())
	w.requireFree(18)
	require.Equal(t, "0", w.do("stats"), "its CUDA calls do not wait")
}

// locked reports whether a process has a device's lock open.
func locked(t *testing.T, pid int) bool {
	t.Helper()
	open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(open, func(descriptor string) bool {
		path, _ := os.Readlink(descriptor)
		return strings.HasSuffix(path, uuidOf(0)+".lock")
	})
}

func TestAnInterruptedCommand(t *testing.T) {
	w := startWhole(t)
	w.do("busy 5000")
	pausing := func() bool { return w.doing() == control.Pause }
	require.Contains(t, interrupted(t, pausing, "pause", w.number(), "--everything", "--force"), "interrupted")
	// The pause that had begun is completed, and then undone.
	require.Eventually(t, func() bool { return w.doing() == "" }, time.Minute, 5*time.Millisecond)
	w.comesBack()
	w.asBefore()
}

func TestWhatTheDriverWouldLoseIsRefused(t *testing.T) {
	w := startWhole(t)
	w.refused("cannot be stopped", "pause", w.number(), "--everything") // no gate, and not forced
	w.asBefore()
	w.do("export")
	w.refused("it has called cudaIpcGetMemHandle, and managed memory, multicast objects, or memory that "+
		"processes share cannot be checkpointed; without --everything, what is pausable can be paused",
		"pause", w.number(), "--everything", "--force")
	require.Equal(t, "801 0 ", w.do("everything 5")[:6])
	w.asBefore()
	t.Setenv("LD_LIBRARY_PATH", "")
	w.refused("the driver's checkpoint is not available", "pause", w.number(), "--everything", "--force")
	w.asBefore()
	t.Setenv("LD_LIBRARY_PATH", oldDriver(t))
	w.refused("this one has no cuCheckpointProcessGetState, which came with driver 570; without --everything, "+
		"what is pausable can be paused", "pause", w.number(), "--everything", "--force")
	w.asBefore()
	succeeds(t, "resume", w.number())
}

// oldDriver makes a directory with a driver that has no checkpoint functions.
func oldDriver(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	library(t, filepath.Join(directory, "libcuda.so.1"), "int cuInit(unsigned f) { return (int)f; } "+
		"int cuGetErrorName(void) { return 0; } int cuGetErrorString(void) { return 0; }")
	return directory
}

// Each is refused before the driver is asked, because its checkpoint would lose the process; the process runs on.
func TestWhatTheDriverCannotCheckpoint(t *testing.T) {
	cannot := func(t *testing.T, w *whole, words string) {
		t.Helper()
		words += "; without --everything, what is pausable can be paused"
		w.refused(words, "pause", w.number(), "--everything", "--force")
		require.Contains(t, w.do("everything 5"), "801 0 ")
		require.Contains(t, w.do("everything 5"), words)
		w.asBefore()
		succeeds(t, "pause", w.number(), "--force") // as the error offered
		w.requireFree(88)
		w.resumed()
	}
	const exporting = "pool cudaMemPoolExportToShareableHandle"
	for _, c := range []struct{ called, does, from string }{ // what another process gives is behind what this one does
		{"cudaMallocManaged", "managed", ""},
		{"cuMulticastCreate", "multicast", ""},
		{"cudaIpcOpenMemHandle", "open ", "export"},
		{"cuMemImportFromShareableHandle", "import /proc/PID/fd/", "share"},
		{"cudaMemPoolExportToShareableHandle", exporting, ""},
		{"cuMemPoolExportToShareableHandle", "pool cuMemPoolExportToShareableHandle", ""},
		{"cudaMemPoolImportFromShareableHandle", "pool cudaMemPoolImportFromShareableHandle /proc/PID/fd/", exporting},
		{"cuMemPoolImportFromShareableHandle", "pool cuMemPoolImportFromShareableHandle /proc/PID/fd/", exporting},
	} {
		t.Run(c.called, func(t *testing.T) {
			w := startWhole(t)
			if c.from != "" {
				other := startSteered(t, w.Path, "CUDASIM_SHARED=") // with a device of its own
				other.do("own 2")
				c.does = strings.Replace(c.does, "PID", other.number(), 1) + other.do(c.from)
			}
			w.do(c.does)
			cannot(t, w, "it has called "+c.called+
				", and managed memory, multicast objects, or memory that processes share cannot be checkpointed")
		})
	}
	t.Run("a part of a GPU", func(t *testing.T) {
		cannot(t, startWhole(t, "CUDASIM_NAME=NVIDIA H200 MIG 1g.18gb"),
			"GPU 0 is a part of a GPU (NVIDIA H200 MIG 1g.18gb), which the driver cannot checkpoint")
	})
}

// Memory that was shared keeps the driver from a checkpoint as long as anything holds it: a handle, a mapping or a
// descriptor. After a call that fails it counts as held.
func TestMemoryThatIsNoLongerShared(t *testing.T) {
	hermetic.Thorough(t)
	const words = "it has called cuMemExportToShareableHandle, and managed memory"
	for _, test := range []struct {
		name, environment, steps string // steps that fail end with !
	}{
		{"released", "", "release close"},
		{"closed first", "", "close release"},
		{"mapped", "", "map release close unmap"},
		{"retained", "", "map retain release unmap close release"},
		{"an unmap that fails", "CUDASIM_FAIL=cuMemUnmap:1:999", "map close release unmap! unmap"},
		{"a release that fails", "CUDASIM_FAIL=cuMemRelease:1:999", "close release! release"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWhole(t, test.environment)
			descriptor := w.do("share")
			for _, step := range strings.Fields(test.steps) {
				require.Contains(t, w.do("everything 5"), words, "before %s", step)
				how, fails := strings.CutSuffix(step, "!")
				if how == "close" {
					w.do("forget " + descriptor)
				} else {
					require.Equal(t, !fails, w.do("exported "+how) == "0", step)
				}
			}
			if strings.Contains(test.steps, "!") {
				require.Contains(t, w.do("everything 5"), words)
				return
			}
			require.Contains(t, w.do("everything 5"), "0 ")
			w.resumed()
		})
	}
}

func TestFromInside(t *testing.T) {
	w := startWhole(t)
	w.do("signal")
	descriptors := w.do("descriptors")
	for i := range 3 {
		require.Equal(t, fmt.Sprint("0 ", 32<<20, " "), w.do("everything 5"))
		w.requireFree(128)
		require.Equal(t, "1", w.do("stats"))
		if i == 1 {
			w.resumed()
		} else {
			require.Equal(t, "0 ", w.do("again"))
			w.asBefore()
		}
	}
	require.Equal(t, descriptors, w.do("descriptors"))
	w.do("ignore") // then the library cannot reap the command
	require.Equal(t, fmt.Sprint("0 ", 32<<20, " "), w.do("everything 5"))
	require.Equal(t, "0 0 ", w.do("everything 5"), "twice is no harm")
	w.other.do("hog")
	require.Contains(t, w.do("again"), "2 other processes have the memory")
	w.other.do("unhog")
	require.Equal(t, "0 ", w.do("again"))
	w.asBefore()
	require.Contains(t, w.do("everything -1"), "1 0 -1 is no number of seconds")
}

// As long as a client may still ask the driver to checkpoint the process, no other client lets calls go on during which
// the checkpoint would kill it.
func TestAPauseOfEverythingEndsByItsClient(t *testing.T) {
	w := startWhole(t, reaching(t))
	c, err := client.Dial(w.Process.Pid)
	require.NoError(t, err)
	defer c.Close()
	reply, err := c.Do(t.Context(), control.SteerRequest{Op: control.Pause, Everything: true})
	require.NoError(t, err)
	require.True(t, reply.OK, reply.Error)
	const words = "another command is pausing everything of this process at this moment"
	w.refused(words, "resume", w.number())
	w.refused(words, "pause", w.number(), "--everything")
	require.Contains(t, w.do("within 0"), "800 others keep this program paused: a tms command (user ")
	w.requireFree(88) // the library's part is done; the driver has not been asked yet
	_, err = io.WriteString(w.say, "again\n")
	require.NoError(t, err)
	c.Close()
	require.Equal(t, "0 ", w.line())
	w.asBefore()
}

// Where the gate holds calls, it opens with the resume, whichever client makes it.
func TestFromInsideUnderTheGate(t *testing.T) {
	w := startWhole(t, reaching(t))
	for range 3 {
		require.Equal(t, fmt.Sprint("0 ", 32<<20, " "), w.do("everything 5"))
		w.requireFree(128)
		require.Equal(t, "0 ", w.do("again"))
		w.asBefore()
	}
}

// There is no command, or it is another program, or it dies: the error says so, and nothing is lost.
func TestFromInsideWithoutACommand(t *testing.T) {
	for _, c := range []struct{ command, words string }{
		{"/nonexistent/tms", "/nonexistent/tms cannot be started (No such file or directory)"},
		{"/bin/echo", "/bin/echo ended before it was done, tms resume"},
		{"/bin/false", "/bin/false ended before it was done"},
	} {
		w := startWhole(t, "TMS_COMMAND="+c.command)
		require.Contains(t, w.do("everything 5"), "304 0 "+c.words)
		w.asBefore()
	}
	dies := filepath.Join(t.TempDir(), "dies")
	script := "#!/bin/sh\nCUDASIM_FAIL=cuCheckpointProcessGetState:2:kill exec " + tms + " \"$@\"\n"
	executable(t, dies, []byte(script))
	w := startWhole(t, "TMS_COMMAND="+dies)
	require.Contains(t, w.do("everything 5"), "ended before it was done")
	w.requireFree(128)
	w.resumed()
}

func TestContentsMoveToDisk(t *testing.T) {
	directory := t.TempDir()
	w := startWhole(t, "TMS_DISK_BACKUP_DIR="+directory)
	files := func() int { return filesOf(t, w.Process.Pid, directory) }
	none := func() bool { return files() == 0 } // in a moment: files are closed in the background
	for _, everything := range []bool{false, true} {
		arguments := []string{"pause", w.number(), "--force", "--to", "disk"}
		if everything {
			arguments = append(arguments, "--everything")
		}
		require.Contains(t, succeeds(t, arguments...), "; 24.00 MiB moved to disk")
		require.Equal(t, 1, files())
		require.Regexp(t, `weights .* 24.0 MiB disk`, succeeds(t, "ps"))
		if !everything {
			require.Contains(t, succeeds(t, "pause", w.number(), "--force", "--to", "host"),
				"nothing to pause; 24.00 MiB moved to host")
			require.Eventually(t, none, time.Minute, 5*time.Millisecond)
			succeeds(t, arguments...)
		}
		w.resumed()
		require.Eventually(t, none, time.Minute, 5*time.Millisecond)
	}
	// A directory that is not writable.
	require.NoError(t, os.RemoveAll(directory))
	require.NoError(t, os.WriteFile(directory, nil, 0o600))
	w.refused("not a directory", "pause", w.number(), "--force", "--to", "disk")
	w.asBefore()
	succeeds(t, "pause", w.number(), "--force")
	w.refused("paused, but its contents were not moved", "pause", w.number(), "--force", "--to", "disk")
	w.requireFree(88)
	w.resumed()
	w.refused("not a directory", "pause", w.number(), "--force", "--to", "disk", "--everything")
	w.asBefore()
}

// filesOf counts the files in a directory that threads of a process have open, and checks that none has a name.
func filesOf(t *testing.T, pid int, directory string) (count int) {
	t.Helper()
	names, err := os.ReadDir(directory)
	require.NoError(t, err)
	require.Empty(t, names)
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/fd/*", pid))
	require.NoError(t, err)
	for _, descriptor := range open {
		if target, _ := os.Readlink(descriptor); strings.HasPrefix(target, directory+"/") {
			count++
		}
	}
	return count
}

// A program's threads give the device work, ask it all the time whether it is done, or free memory, for which the
// library asks that. Such queries do not wait for the driver, and kill a process that it has checkpointed.
func TestEverythingOfAProgramThatWorks(t *testing.T) {
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	for _, does := range []string{"work", "poll", "churn"} {
		t.Run(does, func(t *testing.T) {
			s := startSteered(t, steeredProgram(t), reaching(t))
			s.do(does)
			for range hermetic.Often(20, 3) {
				s.advances("cycles")
				succeeds(t, "pause", s.number(), "--everything")
				if does != "churn" { // a freed piece may serve the next allocation without the driver
					before := s.do("cycles")
					time.Sleep(10 * time.Millisecond)
					require.Equal(t, before, s.do("cycles"), "no thread works while the program is paused")
				}
				succeeds(t, "resume", s.number())
			}
			s.advances("cycles")
			s.do("calm", "check")
		})
	}
}

func reaching(t *testing.T) string {
	return "LD_PRELOAD=" + built(t, "lib", "libtms.so") + ":" + built(t, "lib", "libtms_reach.so")
}
