package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/cudasim"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/machine/checkpoint"
)

// Another program has taken the memory between the look and the restore. The process can then never come back, and every
// command says so, with the cause.
func TestAProcessThatIsLost(t *testing.T) {
	w := startWhole(t)
	w.pause()
	const words = "the driver has lost the process: it found too little memory (cuCheckpointProcessRestore: out of " +
		"memory (2)), and answers every later restore with 304: another program took the memory after tms had seen it " +
		"free (a program that takes device memory in the moment of the driver's restore can still lose the process"
	const end = "The process is lost: what it had on its GPUs is gone, and its CUDA calls wait for good. End it: kill -9 "
	t.Setenv("CUDASIM_FAIL", "cuCheckpointProcessRestore:1:2")
	require.Contains(t, fails(t, exitLost, words, "resume", w.number()), end+w.number())
	t.Setenv("CUDASIM_FAIL", "cuCheckpointProcessRestore:1:kill") // it is not tried again
	fails(t, exitLost, words, "resume", w.number(), "--wait", "60")
	stdout, _, code := command(t, "resume", w.number(), "--json")
	require.Equal(t, exitLost, code)
	outcomes := parsed[[]group.Outcome](t, stdout)
	require.True(t, outcomes[0].Lost && !outcomes[0].OK)
	require.Equal(t, 401, outcomes[0].Code)
	w.refused(words, "pause", w.number(), "--force")
	w.refused(words, "resume", w.number(), "--dry-run")
	require.Contains(t, w.do("again"), "401 "+words)

	listed := succeeds(t, "ps")
	require.Regexp(t, `(?m)^ *`+w.number()+` .* weights .* lost `, listed)
	require.Contains(t, listed, w.number()+": "+words[:40])
	states := parsed[[]fleet.Process](t, succeeds(t, "ps", "--json", w.number()))
	require.Contains(t, states[0].Driver.Lost, words)
	require.Equal(t, []control.DriverBytes{{UUID: uuidOf(0), Bytes: 40 << 20}}, states[0].Driver.Devices)
	w.requireFree(128)
	_, address := serving(t)
	requireLost := func(s scraped) bool {
		return s.values("tms_process_up")[0] == 1 && s.values("tms_process_lost", "pid="+w.number())[0] == 1
	}
	require.Eventually(t, func() bool { return requireLost(scrape(t, address)) }, time.Minute, 5*time.Millisecond)
}

// A checkpoint that the driver does not survive is told in the same way.
func TestACheckpointThatLosesTheProcess(t *testing.T) {
	w := startWhole(t)
	w.do("unseen 2", "share") // both behind the library's back
	w.do("exported map")
	driver := driverHere(t)
	require.NoError(t, driver.Lock(w.Process.Pid, time.Minute))
	require.Error(t, driver.Checkpoint(w.Process.Pid, time.Minute))
	fails(t, exitLost, "a checkpoint failed. The process is lost", "resume", w.number())
}

// driverHere is the simulator, as this process's driver.
func driverHere(t *testing.T) *checkpoint.Driver {
	t.Helper()
	sim, err := cudasim.Load() // the loader finds it again by its name
	require.NoError(t, err)
	sim.Reset()
	t.Cleanup(sim.Reset)
	driver, err := checkpoint.Open()
	require.NoError(t, err)
	return driver
}

// No tms has noted what the driver has taken, so only the user can know whether there is room.
func TestWhatTheDriverTookIsNotKnown(t *testing.T) {
	w := startWhole(t)
	c, err := client.Dial(w.Process.Pid)
	require.NoError(t, err)
	defer c.Close()
	driver := driverHere(t)
	require.NoError(t, group.Ask(t.Context(), c, control.SteerRequest{Op: control.Pause, Everything: true, Force: true}))
	require.NoError(t, driver.Lock(w.Process.Pid, time.Minute))
	require.NoError(t, driver.Checkpoint(w.Process.Pid, time.Minute))
	require.NoError(t, group.Ask(t.Context(), c, control.SteerRequest{Op: control.Keep}))
	w.refused("how much memory the driver needs for it is not known", "resume", w.number())
	state, err := driver.State(w.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, checkpoint.Checkpointed, state)
	t.Setenv(checkpoint.Override, "1")
	w.resumed()
}

func TestADriverThatWasNotTried(t *testing.T) {
	w := startWhole(t, reaching(t))
	t.Setenv("CUDASIM_DRIVER", "595.71.05")
	const words = `the checkpoint of driver "595.71.05" has not been tried with tms`
	w.refused(words, "pause", w.number(), "--everything")
	w.refused(words, "move", w.number(), "--to", "0")
	w.asBefore()
	t.Setenv(checkpoint.Override, "1")
	succeeds(t, "pause", w.number(), "--everything")
	t.Setenv(checkpoint.Override, "")
	w.resumed() // nothing that was paused is stranded
}

// A neighbour that tms resumes again and again is never resumed between a look and its restore: each takes memory in its
// turn. Together they do not fit, so each waits for the other.
func TestRestoresBesideANeighbourThatTmsSteers(t *testing.T) {
	hermetic.Thorough(t)
	w := startWhole(t, reaching(t))
	neighbour := startSteered(t, w.Path, reaching(t), "CUDASIM_MEMORY=128M")
	w.pause()
	neighbour.do("more 40")
	ended := make(chan error)
	often := hermetic.Often(200, 3)
	go func() {
		var failed []error
		for range often {
			for _, arguments := range [][]string{{"pause"}, {"resume", "--wait", "60"}} {
				words, err := exec.Command(tms, append(arguments, neighbour.number())...).CombinedOutput()
				if err != nil {
					failed = append(failed, fmt.Errorf("%w: %s", err, words))
				}
			}
		}
		_, err := exec.Command(tms, "pause", neighbour.number()).CombinedOutput()
		ended <- errors.Join(append(failed, err)...)
	}()
	for range often {
		succeeds(t, "resume", w.number(), "--wait", "60")
		w.do("check")
		w.pause()
	}
	require.NoError(t, <-ended)
	succeeds(t, "resume", neighbour.number())
	neighbour.do("check")
	succeeds(t, "pause", neighbour.number())
	w.resumed()
}

// A command that waits for another's turn can be interrupted.
func TestAWaitForATurnIsInterrupted(t *testing.T) {
	w := startWhole(t)
	w.pause()
	unlock, err := group.Lock(uuidOf(0))
	require.NoError(t, err)
	defer unlock()
	c := exec.Command(tms, "resume", w.number())
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return locked(t, c.Process.Pid) }, time.Minute, 5*time.Millisecond)
	require.NoError(t, c.Process.Signal(unix.SIGTSTP)) // others may wait for it
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.Error(t, c.Wait())
	require.Equal(t, exitNo, c.ProcessState.ExitCode())
	unlock()
	w.resumed()
}

// In a container NVML's numbers of processes are not those of tms. What it shows on the GPU that a paused process has
// left is another process's.
func TestAMoveInAContainerLooksAtTheDestination(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root makes a PID namespace")
	}
	if alone(t) {
		TestAMoveLooksAtTheDestination(t)
	}
}

// The room is looked for where the process goes, not where it was.
func TestAMoveLooksAtTheDestination(t *testing.T) {
	m := startMobile(t)
	m.whole.pause()
	m.other.do("hog")
	m.refused("GPU 0 has 0 bytes free", "resume", m.number())
	m.move("1")
	m.leaves([3]int{0, 128 - everythingOfIt, 128})
	m.do("check")
	m.whole.pause()
	m.other.do("device 1", "hog")
	m.refused("GPU 1 has 0 bytes free", "resume", m.number())
	m.refused("GPU 0 has 0 bytes free, and 72.00 MiB are needed there", "move", m.number(), "--to", "0")
	m.move("2")
	m.leaves([3]int{0, 0, 128 - everythingOfIt})
	m.do("check")
}
