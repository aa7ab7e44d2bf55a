package cudasim

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

// simDir returns build/sim.
func simDir(t *testing.T) string {
	t.Helper()
	library, err := Library()
	require.NoError(t, err)
	return filepath.Dir(library)
}

// compile builds a C fixture against the simulator, for one major of the runtime (0: driver only).
func compile(t *testing.T, fixture string, major int) string {
	t.Helper()
	dir := simDir(t)
	args := []string{"-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-Idriver/abi", filepath.Join("testdata", fixture+".c"), filepath.Join(dir, "libcuda.so.1"), "-ldl"}
	if major != 0 {
		args = append(args, fmt.Sprintf("-DCUDART_MAJOR=%d", major), fmt.Sprintf("%s/libcudart.so.%d", dir, major))
	}
	if strings.HasSuffix(filepath.Dir(dir), "sanitized") {
		args = append(args, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
	}
	return hermetic.Compile(t, fixture, args...)
}

// environment returns this process's, in which the simulator is found and has its default settings.
func environment(t *testing.T) []string {
	t.Helper()
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "CUDASIM_") {
			env = append(env, entry)
		}
	}
	return append(env, "LD_LIBRARY_PATH="+simDir(t))
}

// run runs one case of a fixture and returns its stderr.
func run(t *testing.T, binary, name string, env ...string) string {
	t.Helper()
	cmd := exec.Command(binary, name)
	cmd.Env = append(environment(t), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Run(), "%s", stderr.String())
	return stderr.String()
}

// Cases that need an environment of their own.
var environments = map[string][]string{
	"out_of_memory_and_recovery":             {"CUDASIM_MEMORY=64M"},
	"freed_in_order_is_found_again":          {"CUDASIM_MEMORY=64M"},
	"allocating_beside_a_gate":               {"CUDASIM_MEMORY=64M"},
	"ten_thousand_handles":                   {"CUDASIM_MEMORY=64G"},
	"bad_values_give_defaults":               {"CUDASIM_DEVICES=many", "CUDASIM_MEMORY=-5G", "CUDASIM_GRANULARITY=3M"},
	"good_values":                            {"CUDASIM_DEVICES=2", "CUDASIM_MEMORY=3M", "CUDASIM_GRANULARITY=64k"},
	"several_mappings_or_nothing":            {"CUDASIM_DEVICES=2"},
	"unmapping_several_does_not_wait":        {"CUDASIM_DEVICES=2"},
	"a_pool_serves_streams_of_other_devices": {"CUDASIM_DEVICES=2"},
	"no_device":                              {"CUDASIM_DEVICES=0"},
	"no_peers":                               {"CUDASIM_PEERS=0"},
	"by_environment": {"CUDASIM_FAIL=cuMemMap:3:2,cuMemCreate_v9:1:1,cuMemCreate:1:2,rubbish,cuInit:x:1," +
		"cuMemRelease:1:999"},
}

// What a case prints on stderr, line by line; cases not listed print nothing.
var complaints = map[string][]string{
	"by_call":              {"cuNoSuchFunction"},
	"asked_by_nvidias_own": {"NVIDIA's own libcudart, as PyTorch, CuPy and JAX have it, cannot run on the simulator"},
	"by_environment": {
		"cuMemCreate_v9", "rubbish", "cuInit:x:1",
		"cuMemCreate_v9", "rubbish", "cuInit:x:1", // read again by the reset
	},
	"bad_values_give_defaults": {
		"CUDASIM_DEVICES=many is not a number from 0 to 16",
		"CUDASIM_MEMORY=-5G is not a number",
		"CUDASIM_GRANULARITY=3M is not a power of two; using 2097152",
	},
}

func TestFixtures(t *testing.T) {
	fixtures := []struct {
		name  string
		major int
		env   []string
	}{
		{name: "vmm"},
		{name: "memory"},
		{name: "stream"},
		{name: "capture"},
		{name: "context", env: []string{"CUDASIM_DEVICES=3"}},
		{name: "kernel", env: []string{"CUDASIM_DEVICES=2"}},
		{name: "failure"},
		{name: "thread"},
		{name: "runtime", major: 12, env: []string{"CUDASIM_DEVICES=2"}},
		{name: "runtime", major: 13, env: []string{"CUDASIM_DEVICES=2"}},
	}
	for _, fixture := range fixtures {
		title := fixture.name
		if fixture.major != 0 {
			title = fmt.Sprintf("%s%d", fixture.name, fixture.major)
		}
		t.Run(title, func(t *testing.T) {
			binary := compile(t, fixture.name, fixture.major)
			list := exec.Command(binary)
			list.Env = environment(t)
			names, err := list.Output()
			require.NoError(t, err)
			require.NotEmpty(t, names)
			for _, name := range strings.Fields(string(names)) {
				t.Run(name, func(t *testing.T) {
					env := append(append([]string{}, fixture.env...), environments[name]...)
					stderr := strings.TrimSuffix(run(t, binary, name, env...), "\n")
					var lines []string
					if stderr != "" {
						lines = strings.Split(stderr, "\n")
					}
					require.Len(t, lines, len(complaints[name]), stderr)
					for i, line := range lines {
						require.True(t, strings.HasPrefix(line, "cudasim: "), line)
						require.Contains(t, line, complaints[name][i])
					}
				})
			}
		})
	}
}

func TestLibrariesLookLikeTheRealOnes(t *testing.T) {
	for _, library := range []struct {
		file, version string
		required      []string
	}{
		{"libcuda.so.1", "",
			[]string{"cuInit", "cuMemAlloc_v2", "cuMemMap", "cuGetProcAddress_v2", "cuMemcpyHtoDAsync_v2_ptsz"}},
		{"libcudart.so.12", "libcudart.so.12", []string{"cudaMalloc", "cudaFree", "cudaGetDeviceProperties_v2",
			"cudaStreamIsCapturing_ptsz", "cudaMemcpy_ptds"}},
		{"libcudart.so.13", "libcudart.so.13", []string{"cudaMalloc", "cudaFree", "cudaGetDeviceProperties",
			"cudaMallocAsync_ptsz", "cudaGetDriverEntryPointByVersion"}},
	} {
		t.Run(library.file, func(t *testing.T) {
			file, err := elf.Open(filepath.Join(simDir(t), library.file))
			require.NoError(t, err)
			defer file.Close()
			soname, err := file.DynString(elf.DT_SONAME)
			require.NoError(t, err)
			require.Equal(t, []string{library.file}, soname)
			needed, err := file.ImportedLibraries()
			require.NoError(t, err)
			for _, name := range needed {
				require.NotContains(t, name, "libcuda")
			}
			symbols, err := file.DynamicSymbols()
			require.NoError(t, err)
			exported := map[string]bool{}
			for _, symbol := range symbols {
				if symbol.Section == elf.SHN_UNDEF || symbol.Name == library.version {
					continue // imported, or the version's own name
				}
				exported[symbol.Name] = true
				require.Regexp(t, `^(cu[A-Z]|cuda[A-Z]|__cuda|cudasim_)`, symbol.Name)
				require.Equal(t, library.version, symbol.Version, symbol.Name)
				require.False(t, symbol.VersionIndex.IsHidden(), "%s is @, not @@", symbol.Name)
			}
			for _, name := range library.required {
				require.True(t, exported[name], name)
			}
		})
	}
	for link, target := range map[string]string{"libcuda.so": "libcuda.so.1", "libcudart.so": "libcudart.so.13"} {
		got, err := os.Readlink(filepath.Join(simDir(t), link))
		require.NoError(t, err)
		require.Equal(t, target, got)
	}
}

// A thread's first call takes no memory for thread-local data: where there is none, the C library ends the process.
func TestThreadLocalDataIsThereFromTheStart(t *testing.T) {
	for _, library := range []string{"libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libnvidia-ml.so.1"} {
		file, err := elf.Open(filepath.Join(simDir(t), library))
		require.NoError(t, err)
		imported, err := file.ImportedSymbols()
		require.NoError(t, err)
		for _, symbol := range imported {
			require.NotEqual(t, "__tls_get_addr", symbol.Name, library)
		}
		require.NoError(t, file.Close())
	}
}

func TestRuntimeWithoutADriver(t *testing.T) {
	// Alone in its folder, and with no libcuda.so.1 on the system, the runtime says so.
	if _, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL); err == nil {
		t.Skip("this machine has a driver")
	}
	for _, major := range []int{12, 13} {
		source, err := os.ReadFile(filepath.Join(simDir(t), fmt.Sprintf("libcudart.so.%d", major)))
		require.NoError(t, err)
		alone := filepath.Join(t.TempDir(), fmt.Sprintf("libcudart.so.%d", major))
		require.NoError(t, os.WriteFile(alone, source, 0o700))
		handle, err := purego.Dlopen(alone, purego.RTLD_NOW|purego.RTLD_LOCAL)
		require.NoError(t, err)
		var count int32
		var deviceCount func(*int32) int32
		purego.RegisterLibFunc(&deviceCount, handle, "cudaGetDeviceCount")
		require.EqualValues(t, 35, deviceCount(&count))
	}
}

func TestSim(t *testing.T) {
	sim, err := Load()
	require.NoError(t, err)
	sim.Reset()
	defer sim.Reset()
	var initialize func(uint32) int32
	var reserve func(*uintptr, uintptr, uintptr, uintptr, uint64) int32
	purego.RegisterLibFunc(&initialize, sim.Handle, "cuInit")
	purego.RegisterLibFunc(&reserve, sim.Handle, "cuMemAddressReserve")

	var address uintptr
	granularity := uintptr(sim.Stat("granularity"))
	require.EqualValues(t, 2<<20, granularity)
	require.EqualValues(t, 3, reserve(&address, granularity, 0, 0, 0))
	require.Zero(t, initialize(0))
	require.Zero(t, reserve(&address, granularity, 0, 0, 0))
	require.EqualValues(t, granularity, sim.Stat("reserved_bytes"))
	require.EqualValues(t, 2, sim.Stat("calls:cuMemAddressReserve"))
	require.Equal(t, uint64(Unknown), sim.Stat("no such thing"))

	sim.Fail("cuMemAddressReserve", 2, 2)
	require.Zero(t, reserve(&address, granularity, 0, 0, 0))
	require.EqualValues(t, 2, reserve(&address, granularity, 0, 0, 0))
	require.EqualValues(t, 1, sim.FailuresFired())
	sim.Fail("cuMemAddressReserve", 1, 2)
	sim.ClearFailures()
	require.Zero(t, reserve(&address, granularity, 0, 0, 0))

	sim.Reset()
	require.Zero(t, sim.Stat("reserved_bytes"))
	require.Zero(t, sim.FailuresFired())
	require.EqualValues(t, 3, reserve(&address, granularity, 0, 0, 0))
}

func TestResetReadsTheEnvironment(t *testing.T) {
	sim, err := Load()
	require.NoError(t, err)
	defer sim.Reset()
	t.Setenv("CUDASIM_DEVICES", "5")
	t.Setenv("CUDASIM_MEMORY", "3G")
	sim.Reset()
	require.EqualValues(t, 5, sim.Stat("devices"))
	require.EqualValues(t, 3<<30, sim.Stat("free:4"))
	require.Equal(t, uint64(Unknown), sim.Stat("free:5"))
}

func TestLibraryIsMissing(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module other\n"), 0o600))
	inner := filepath.Join(root, "a", "b")
	require.NoError(t, os.MkdirAll(inner, 0o700))
	t.Chdir(inner)
	t.Setenv("TESTS_BUILD", "")
	_, err := library()
	require.ErrorContains(t, err, filepath.Join("scripts", "build-sim.sh"))
	t.Setenv("TESTS_BUILD", "build/sanitized") // built by others
	_, err = library()
	require.ErrorContains(t, err, filepath.Join(root, "build/sanitized"))
}
