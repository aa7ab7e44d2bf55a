package nvml

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/cudasim"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

const mib = 1 << 20

// user is a process that uses devices, from the simulator's own fixture.
type user struct {
	*exec.Cmd
	t       *testing.T
	stdin   io.Writer
	answers *bufio.Reader
}

// users starts a number of users, which share their devices with one another and with this process's NVML.
func users(t *testing.T, count int, environment ...string) []*user {
	t.Helper()
	library, err := cudasim.Library()
	require.NoError(t, err)
	binary := hermetic.Compile(t, "user", "-std=gnu11", "-D_GNU_SOURCE", "-pthread",
		filepath.Join("..", "..", "cudasim", "testdata", "shared.c"), library)
	t.Setenv("CUDASIM_SHARED", fmt.Sprintf("%s-%d", t.Name(), os.Getpid()))
	started := make([]*user, count)
	for i := range started {
		u := &user{Cmd: exec.Command(binary), t: t}
		u.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(library)), environment...)
		u.Stderr = os.Stderr
		u.stdin, err = u.StdinPipe()
		require.NoError(t, err)
		stdout, err := u.StdoutPipe()
		require.NoError(t, err)
		u.answers = bufio.NewReader(stdout)
		require.NoError(t, u.Start())
		t.Cleanup(u.end)
		require.Equal(t, "0", u.do("start", 0))
		started[i] = u
	}
	return started
}

func (u *user) end() {
	_ = u.Process.Kill()
	_ = u.Wait()
}

func (u *user) do(command string, number int) string {
	u.t.Helper()
	_, err := fmt.Fprintf(u.stdin, "%s %d\n", command, number)
	require.NoError(u.t, err)
	line, err := u.answers.ReadString('\n')
	require.NoError(u.t, err)
	return strings.TrimSpace(line)
}

// open loads the simulated NVML in place of NVIDIA's: the loader finds it again by its name.
func open(t *testing.T) *Library {
	t.Helper()
	if os.Getenv("CUDASIM_SHARED") == "" {
		t.Setenv("CUDASIM_SHARED", fmt.Sprintf("%s-%d", t.Name(), os.Getpid())) // apart from other work on this machine
	}
	library, err := cudasim.Library()
	require.NoError(t, err)
	_, err = purego.Dlopen(filepath.Join(filepath.Dir(library), "libnvidia-ml.so.1"), purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	l, err := Open()
	require.NoError(t, err)
	return l
}

func devices(t *testing.T, l *Library) []Device {
	t.Helper()
	found, err := l.Devices()
	require.NoError(t, err)
	for _, d := range found {
		slices.SortFunc(d.Processes, func(x, y Process) int { return x.PID - y.PID })
	}
	return found
}

// Programs on the simulator end their use of NVML, as pynvml does; package nvml does not.
func TestShutdown(t *testing.T) {
	l := open(t)
	loaded, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	shutdown, err := purego.Dlsym(loaded, "nvmlShutdown")
	require.NoError(t, err)
	ended := uintptr(0)
	for ended == 0 { // as often as tests have initialized it
		ended, _, _ = purego.SyscallN(shutdown)
	}
	_, err = l.Devices()
	require.ErrorContains(t, err, "Uninitialized")
	require.NoError(t, l.call("nvmlInit_v2"))
	require.NotEmpty(t, devices(t, l))
}

func TestWhatEachProcessHas(t *testing.T) {
	all := users(t, 2, "CUDASIM_DEVICES=2", "CUDASIM_MEMORY=64M")
	slices.SortFunc(all, func(x, y *user) int { return x.Process.Pid - y.Process.Pid })
	one, other := all[0], all[1]
	require.Equal(t, "0", one.do("allocate", 40*mib))
	require.Equal(t, "0", other.do("allocate", 8*mib))
	l := open(t)
	has := func(u *user, mebibytes uint64) Process { return Process{u.Process.Pid, mebibytes * mib, true} }
	found := devices(t, l)
	require.Equal(t, []Device{
		{0, "GPU-63756461-7369-6d2d-6465-766963652d00", "cudasim", 64 * mib, 48 * mib, 16 * mib,
			[]Process{has(one, 40), has(other, 8)}},
		{1, "GPU-63756461-7369-6d2d-6465-766963652d01", "cudasim", 64 * mib, 0, 64 * mib,
			[]Process{has(one, 0), has(other, 0)}},
	}, found)

	version, err := l.DriverVersion()
	require.NoError(t, err)
	require.Equal(t, "580.159.04", version)
	memory, err := l.Memory()
	require.NoError(t, err)
	for i := range memory {
		memory[i].Processes = found[i].Processes
	}
	require.Equal(t, found, memory)

	delete(l.address, newerMemoryInfo) // like an older driver
	require.Equal(t, found, devices(t, l))

	require.Equal(t, "0", one.do("free", 0))
	require.Equal(t, []Process{has(one, 0), has(other, 8)}, devices(t, l)[0].Processes)
	// A checkpointed process has nothing, and is on no device.
	for _, step := range []string{"lock", "checkpoint"} {
		require.Equal(t, "0", one.do(step, other.Process.Pid))
	}
	require.Equal(t, []Process{has(one, 0)}, devices(t, l)[0].Processes)
	require.Equal(t, uint64(64*mib), devices(t, l)[0].FreeBytes)
	for _, step := range []string{"restore", "unlock"} {
		require.Equal(t, "0", one.do(step, other.Process.Pid))
	}
	require.Equal(t, "0", one.do("outlive", 4*mib)) // a descriptor holds it, and no process has it
	require.Equal(t, []Process{has(one, 0), has(other, 8)}, devices(t, l)[0].Processes)
	require.Equal(t, uint64(12*mib), devices(t, l)[0].UsedBytes)
	one.end()
	require.Equal(t, []Process{has(other, 8)}, devices(t, l)[0].Processes)
	require.Equal(t, uint64(8*mib), devices(t, l)[0].UsedBytes)
}

// More processes than there is room for at first, and devices without a process.
func TestManyProcessesAndNone(t *testing.T) {
	const count = 2*fewProcesses + 1
	all := users(t, count, "CUDASIM_MEMORY=64M")
	for _, u := range all {
		require.Equal(t, "0", u.do("allocate", mib))
	}
	l := open(t)
	found := devices(t, l)
	require.Len(t, found[0].Processes, count)
	require.Equal(t, uint64(count*mib), found[0].UsedBytes)
	for _, u := range all {
		u.end()
	}
	require.Empty(t, devices(t, l)[0].Processes)
	t.Setenv("CUDASIM_DEVICES", "3")
	t.Setenv("CUDASIM_MEMORY", "2G")
	found = devices(t, open(t)) // NVML reads the environment when it starts
	require.Len(t, found, 3)
	require.Equal(t, uint64(2<<30), found[2].TotalBytes)
}

func TestErrors(t *testing.T) {
	t.Setenv("CUDASIM_SHARED", fmt.Sprintf("%s-%d", t.Name(), os.Getpid())) // other processes have other devices
	l := open(t)
	_, err := l.describe(&Device{Index: 16})
	require.EqualError(t, err, "nvmlDeviceGetHandleByIndex_v2: NVML error 2: Invalid Argument")
	_, err = l.list(17)
	require.EqualError(t, err, "nvmlDeviceGetComputeRunningProcesses_v2: NVML error 2: Invalid Argument")
	fallen := func(_, _, _ uintptr) uintptr { return 15 } // off the bus
	l.address["nvmlDeviceGetName"] = purego.NewCallback(fallen)
	found, err := l.Devices()
	require.Empty(t, found)
	require.EqualError(t, err, "device 0: nvmlDeviceGetName: NVML error 15: Unknown Error")
}

// A separate process, because this one has loaded an NVML.
func TestWithoutNVML(t *testing.T) {
	if words := os.Getenv("EXPECTED_WORDS"); words != "" {
		_, err := Open()
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, words)
		return
	}
	none, old := t.TempDir(), t.TempDir()
	library := filepath.Join(old, "libnvidia-ml.so.1")
	out, err := exec.Command("cc", "-shared", "-x", "c", "-o", library, "/dev/null").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for dir, words := range map[string]string{none: "cannot open shared object file", old: "11.2 or newer is needed"} {
		c := exec.Command(os.Args[0], "-test.run=^TestWithoutNVML$")
		c.Env = append(os.Environ(), "EXPECTED_WORDS="+words, "LD_LIBRARY_PATH="+dir)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
