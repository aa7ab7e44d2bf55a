package checkpoint

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/cudasim"
	"tms/vmm/cuda"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

// open loads the simulator as the driver of this process.
func open(t *testing.T) (*Driver, *cudasim.Sim) {
	t.Helper()
	sim := cudasim.Start(t)
	driver, err := Open()
	require.NoError(t, err)
	return driver, sim
}

// target is a process that follows commands, from the simulator's own fixture.
type target struct {
	t       *testing.T
	pid     int
	stdin   io.Writer
	answers *bufio.Reader
}

func start(t *testing.T, environment ...string) *target {
	t.Helper()
	library, err := cudasim.Library()
	require.NoError(t, err)
	binary := hermetic.Compile(t, "target", "-std=gnu11", "-D_GNU_SOURCE", "-pthread",
		filepath.Join("..", "..", "cudasim", "testdata", "shared.c"), library)
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library))
	cmd.Env = append(cmd.Env, environment...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &target{t, cmd.Process.Pid, stdin, bufio.NewReader(stdout)}
}

func (p *target) do(command string, number int) string {
	p.t.Helper()
	_, err := fmt.Fprintf(p.stdin, "%s %d\n", command, number)
	require.NoError(p.t, err)
	line, err := p.answers.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSpace(line)
}

func (p *target) uses(t *testing.T) {
	require.Equal(t, "0", p.do("start", 0))
	require.Equal(t, "0", p.do("allocate", 1<<20))
	require.Equal(t, "0", p.do("fill", 7))
}

func requireState(t *testing.T, driver *Driver, pid int, want State) {
	t.Helper()
	state, err := driver.State(pid)
	require.NoError(t, err)
	require.Equal(t, want, state)
}

// room is what a look would have found.
func room(t *testing.T) *Room {
	t.Helper()
	found, err := Look(func() (func(), error) { return func() {}, nil }, func() error { return nil })
	require.NoError(t, err)
	return found
}

// No restore is made but in the room that a look has found, while the locks are held.
func TestARestoreTakesALook(t *testing.T) {
	driver, sim := open(t)
	sim.Fail("cuCheckpointProcessRestore", 1, int(cuda.Unknown)) // it is not called
	locked := 0
	lock := func() (func(), error) { locked++; return func() { locked-- }, nil }
	_, err := Look(func() (func(), error) { return nil, cuda.Timeout }, func() error { panic("without the lock") })
	require.ErrorIs(t, err, cuda.Timeout)
	none, err := Look(lock, func() error { require.Equal(t, 1, locked); return cuda.OutOfMemory })
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.Zero(t, locked)
	ended, err := Look(lock, func() error { return nil })
	require.NoError(t, err)
	require.Equal(t, 1, locked)
	ended.End()
	ended.End()
	require.Zero(t, locked)
	for _, room := range []*Room{none, ended, {}} {
		require.ErrorContains(t, driver.Restore(room, 1, time.Minute), "nothing has looked whether there is room")
	}
}

func TestThereAndBack(t *testing.T) {
	driver, sim := open(t)
	p := start(t)
	_, err := driver.State(p.pid)
	require.ErrorIs(t, err, ErrNoCUDA)
	p.uses(t)
	for range 3 {
		requireState(t, driver, p.pid, Running)
		require.NoError(t, driver.Lock(p.pid, time.Minute))
		requireState(t, driver, p.pid, Locked)
		require.ErrorIs(t, driver.Lock(p.pid, time.Minute), cuda.IllegalState)
		require.NoError(t, driver.Checkpoint(p.pid, time.Minute))
		requireState(t, driver, p.pid, Checkpointed)
		require.NoError(t, driver.Restore(room(t), p.pid, time.Minute))
		requireState(t, driver, p.pid, Locked)
		require.NoError(t, driver.Unlock(p.pid))
		require.Equal(t, "0 7", p.do("value", 0))
	}
	require.Zero(t, sim.Stat("contexts"), "the caller holds no device memory")
}

// uuid is that of the simulator's device of this number.
func uuid(number int) string {
	return fmt.Sprintf("GPU-63756461-7369-6d2d-6465-766963652d%02x", number)
}

func TestARestoreOnAnotherGPU(t *testing.T) {
	driver, sim := open(t)
	require.NoError(t, driver.CanMove())
	p := start(t, "CUDASIM_DEVICES=3")
	p.uses(t)
	there := []Pair{{uuid(0), uuid(2)}, {uuid(1), uuid(1)}, {uuid(2), uuid(0)}}
	for _, place := range []string{"2", "0"} {
		require.NoError(t, driver.Lock(p.pid, time.Minute))
		require.NoError(t, driver.Checkpoint(p.pid, time.Minute))
		require.ErrorIs(t, driver.Restore(room(t), p.pid, time.Minute, there[:2]...), cuda.InvalidValue)
		require.ErrorIs(t, driver.Restore(room(t), p.pid, time.Minute, there[0], there[0], there[1]), cuda.InvalidValue)
		for _, text := range []string{"", "GPU-", "GPU-63", "GPU-zz", uuid(0) + "00"} {
			require.ErrorContains(t, driver.Restore(room(t), p.pid, time.Minute, Pair{uuid(0), text}), "are no UUIDs of GPUs")
		}
		sim.Fail("cuCheckpointProcessRestore", 1, int(cuda.Unknown))
		require.ErrorIs(t, driver.Restore(room(t), p.pid, time.Minute, there...), cuda.Unknown)
		requireState(t, driver, p.pid, Checkpointed)
		require.NoError(t, driver.Restore(room(t), p.pid, time.Minute, there...))
		require.NoError(t, driver.Unlock(p.pid))
		require.Equal(t, place, p.do("place", 0))
		require.Equal(t, "1", p.do("place", 1))
		require.Equal(t, "0 7", p.do("value", 0))
	}
	sim.Fail("cuDriverGetVersion", 1, int(cuda.Unknown))
	require.ErrorIs(t, driver.CanMove(), cuda.Unknown)
}

func TestALockThatIsLate(t *testing.T) {
	driver, _ := open(t)
	p := start(t)
	p.uses(t)
	require.Equal(t, "0", p.do("busy", 0))
	err := driver.Lock(p.pid, 100*time.Millisecond)
	require.ErrorIs(t, err, ErrLate)
	require.ErrorContains(t, err, "has not ended within 100ms")
	requireState(t, driver, p.pid, Running)
}

func TestFailures(t *testing.T) {
	driver, sim := open(t)
	p := start(t)
	p.uses(t)
	require.NoError(t, driver.Lock(p.pid, time.Minute))
	sim.Fail("cuInit", 1, int(cuda.NoDevice))
	require.ErrorIs(t, driver.Restore(room(t), p.pid, time.Minute), cuda.NoDevice)
	sim.Fail("cuCheckpointProcessCheckpoint", 1, 801)
	require.ErrorContains(t, driver.Checkpoint(p.pid, time.Minute), "managed memory")
	require.NoError(t, driver.Checkpoint(p.pid, time.Minute))
	sim.Fail("cuCheckpointProcessRestore", 1, int(cuda.Unknown))
	require.ErrorIs(t, driver.Restore(room(t), p.pid, time.Minute), cuda.Unknown)
	require.NoError(t, driver.Restore(room(t), p.pid, time.Minute))
	sim.Fail("cuCheckpointProcessUnlock", 1, int(cuda.Unknown))
	require.ErrorIs(t, driver.Unlock(p.pid), cuda.Unknown)
	require.NoError(t, driver.Unlock(p.pid))
	sim.Fail("cuCheckpointProcessGetState", 1, int(cuda.NotSupported))
	_, err := driver.State(p.pid)
	require.ErrorIs(t, err, ErrUnsupported)
	sim.Fail("cuCheckpointProcessGetState", 1, int(cuda.NotInitialized)) // some drivers require cuInit first
	requireState(t, driver, p.pid, Running)
	_, err = driver.State(1 << 30)
	require.ErrorIs(t, err, ErrNoCUDA)
}

func TestWhatTheDriverLosesIsSaid(t *testing.T) {
	driver, _ := open(t)
	p := start(t)
	p.uses(t)
	require.Equal(t, "0", p.do("export", 0))
	require.NoError(t, driver.Lock(p.pid, time.Minute))
	require.ErrorContains(t, driver.Checkpoint(p.pid, time.Minute), "shared with other processes")
	requireState(t, driver, p.pid, Failed)
}

// The driver answers 2 once, and from then on 304, with all memory free.
func TestARestoreWithoutMemoryIsTheLast(t *testing.T) {
	driver, sim := open(t)
	p := start(t)
	p.uses(t)
	require.NoError(t, driver.Lock(p.pid, time.Minute))
	require.NoError(t, driver.Checkpoint(p.pid, time.Minute))
	sim.Fail("cuCheckpointProcessRestore", 1, int(cuda.OutOfMemory))
	err := driver.Restore(room(t), p.pid, time.Minute)
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "out of memory (2)), and answers every later restore with 304")
	require.NotErrorIs(t, err, cuda.OutOfMemory, "callers must not wait for memory")
	require.ErrorIs(t, driver.Restore(room(t), p.pid, time.Minute), cuda.OperatingSystem)
	requireState(t, driver, p.pid, Checkpointed)
}

func TestDriversThatWereTried(t *testing.T) {
	for _, version := range []string{"570.86.15", "575.57.08", "580.95.05", "580.159.04"} {
		require.Empty(t, Untried(version))
	}
	for version, words := range map[string]string{
		"590.48.01":  "which knows drivers up to 580",
		"595.71.05":  "issue 53",
		"610.57.04":  "issue 58",
		"615.1":      "has not been tried",
		"":           `driver "" has not been tried`,
		"nonsense.1": "has not been tried",
	} {
		require.Contains(t, Untried(version), words, version)
	}
	require.Contains(t, Risk(), "can still lose the process")
	for value, takes := range map[string]bool{"1": true, "TRUE": true, "yes": true, "": false, "0": false, "2": false} {
		t.Setenv(Override, value)
		require.Equal(t, takes, Overridden(), value)
	}
}

func TestWithin(t *testing.T) {
	ended := make(chan bool)
	defer close(ended)
	err := within(20*time.Millisecond, func() error { <-ended; return nil })
	require.ErrorIs(t, err, ErrLate)
	require.ErrorContains(t, err, "20ms were not enough")
}
