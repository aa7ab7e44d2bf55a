package hostmemory

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }

func write(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestMachineAvailable(t *testing.T) {
	if growing() {
		t.Skip("this machine gets memory as it uses it")
	}
	dir := t.TempDir()
	meminfo := write(t, dir+"/meminfo", "MemTotal: 999 kB\nMemAvailable:    1024 kB\nSwapFree:  1 kB\n")
	const most = uint64(math.MaxUint64)
	require.Equal(t, uint64(1025<<10), machineAvailable(meminfo, most))
	require.Equal(t, uint64(1024<<10+100), machineAvailable(meminfo, 100))
	require.Equal(t, uint64(1024<<10), machineAvailable(meminfo, 0))
	require.Equal(t, most, machineAvailable(dir+"/none", most))
	require.Equal(t, most, machineAvailable(write(t, dir+"/odd", "nothing\n"), most))
}

// The tightest group on the way to the root counts.
func TestGroupAvailable(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cgroup")
	write(t, dir+"/self/cgroup", "1:name=x:/other\n0::/outer/inner\n")
	write(t, root+"/outer/inner/memory.max", "max\n")
	write(t, root+"/outer/inner/memory.current", "500\n")
	require.Equal(t, uint64(math.MaxUint64), groupAvailable(dir, "self", root, nil))
	write(t, root+"/outer/memory.max", "4096\n")
	write(t, root+"/outer/memory.current", "1096\n")
	require.Equal(t, uint64(3000), groupAvailable(dir, "self", root, nil))
	write(t, root+"/outer/memory.stat", "anon 1\ninactive_file 50\n")
	require.Equal(t, uint64(3050), groupAvailable(dir, "self", root, nil))
	write(t, root+"/outer/inner/memory.max", "400\n")
	require.Equal(t, uint64(0), groupAvailable(dir, "self", root, nil))
}

// In version 1 the memory controller has a hierarchy and a mount of its own.
func TestGroupAvailableOfVersion1(t *testing.T) {
	for _, controllers := range []string{"memory", "cpu,memory"} {
		dir := t.TempDir()
		root := filepath.Join(dir, "cgroup")
		write(t, dir+"/self/cgroup", "12:pids:/pids\n4:"+controllers+":/docker/a:b\n0::/unified\n")
		require.Equal(t, uint64(math.MaxUint64), groupAvailable(dir, "self", root, nil))
		write(t, root+"/memory/memory.limit_in_bytes", "9223372036854771712\n") // none
		write(t, root+"/memory/memory.usage_in_bytes", "4096\n")
		require.Greater(t, groupAvailable(dir, "self", root, nil), uint64(1<<62))
		write(t, root+"/memory/docker/memory.limit_in_bytes", "5000\n")
		write(t, root+"/memory/docker/memory.usage_in_bytes", "1000\n")
		require.Equal(t, uint64(4000), groupAvailable(dir, "self", root, nil))
		write(t, root+"/memory/docker/memory.stat", "inactive_file 7\ntotal_inactive_file 50\n")
		require.Equal(t, uint64(4050), groupAvailable(dir, "self", root, nil))
		write(t, root+"/memory/docker/a:b/memory.limit_in_bytes", "300\n")
		write(t, root+"/memory/docker/a:b/memory.usage_in_bytes", "200\n")
		require.Equal(t, uint64(100), groupAvailable(dir, "self", root, nil))
		// Both versions can be present; the tighter one counts.
		write(t, root+"/unified/memory.max", "64\n")
		write(t, root+"/unified/memory.current", "4\n")
		require.Equal(t, uint64(60), groupAvailable(dir, "self", root, nil))
	}
}

// In a container the path can be the host's, while the mount begins at the container's group.
func TestGroupAvailableInAContainer(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cgroup")
	write(t, dir+"/self/cgroup", "4:memory:/docker/0123\n")
	write(t, root+"/memory/memory.limit_in_bytes", "3000\n")
	write(t, root+"/memory/memory.usage_in_bytes", "1000\n")
	require.Equal(t, uint64(2000), groupAvailable(dir, "self", root, nil))
}

// A group that is throttled above memory.high, or whose swap counts, leaves no more than these allow.
func TestLimitsBelowTheLimit(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cgroup")
	write(t, dir+"/self/cgroup", "4:memory:/a\n0::/b\n")
	write(t, root+"/b/memory.max", "9000\n")
	write(t, root+"/b/memory.high", "5000\n")
	write(t, root+"/b/memory.current", "1000\n")
	require.Equal(t, uint64(4000), groupAvailable(dir, "self", root, nil))
	write(t, root+"/memory/a/memory.limit_in_bytes", "9000\n")
	write(t, root+"/memory/a/memory.usage_in_bytes", "1000\n")
	write(t, root+"/memory/a/memory.memsw.limit_in_bytes", "9500\n")
	write(t, root+"/memory/a/memory.memsw.usage_in_bytes", "9000\n")
	require.Equal(t, uint64(500), groupAvailable(dir, "self", root, nil))
}

// The swap of the machine counts as far as the process's groups may use it, and does not raise the limit of a group.
func TestGroupSwap(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cgroup")
	swap := func() uint64 { return groupSwap(dir, "self", root) }
	require.EqualValues(t, uint64(math.MaxUint64), swap(), "of no known group")
	write(t, dir+"/self/cgroup", "4:memory:/a\n")
	write(t, root+"/memory.swap.max", "1\n")
	require.EqualValues(t, uint64(math.MaxUint64), swap(), "of version 1")
	write(t, dir+"/self/cgroup", "0::/pod/a\n")
	write(t, root+"/memory.swap.max", "max\n")
	write(t, root+"/pod/a/memory.swap.max", "max\n")
	write(t, root+"/pod/a/memory.swap.current", "100\n")
	require.EqualValues(t, uint64(math.MaxUint64), swap())
	write(t, root+"/pod/memory.swap.max", "1000\n")
	write(t, root+"/pod/memory.swap.current", "300\n")
	require.EqualValues(t, 700, swap())
	write(t, root+"/pod/a/memory.swap.high", "500\n")
	require.EqualValues(t, 400, swap())
	write(t, root+"/pod/a/memory.swap.max", "0\n")
	require.EqualValues(t, 0, swap(), "as Kubernetes sets it")
	write(t, root+"/pod/a/memory.max", "1000\n")
	write(t, root+"/pod/a/memory.current", "900\n")
	write(t, root+"/pod/a/memory.swap.max", "max\n")
	require.EqualValues(t, 100, groupAvailable(dir, "self", root, nil))
}

// Promises of processes count in the groups that the processes are in, and in the groups above.
func TestPromisesCountInTheirGroups(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cgroup")
	for process, group := range map[string]string{"1": "/pod/a", "2": "/pod/b", "3": "/podium"} {
		write(t, dir+"/"+process+"/cgroup", "0::"+group+"\n")
	}
	write(t, root+"/pod/memory.max", "1000\n")
	write(t, root+"/pod/memory.current", "100\n")
	write(t, root+"/pod/a/memory.max", "600\n")
	write(t, root+"/pod/a/memory.current", "100\n")
	left := func(process string, promised ...Promised) uint64 { return groupAvailable(dir, process, root, promised) }
	require.EqualValues(t, 500, left("1"))
	require.EqualValues(t, 900, left("2"))
	require.EqualValues(t, 500, left("1", Promised{2, 300}))
	require.EqualValues(t, 400, left("1", Promised{2, 500}))
	require.EqualValues(t, 600, left("2", Promised{1, 300}))
	require.EqualValues(t, 900, left("2", Promised{3, 300}))
	require.EqualValues(t, 600, left("2", Promised{99, 300}), "of no known group")
	require.EqualValues(t, 0, left("1", Promised{2, 500}, Promised{1, 700}))
}
