package hostmemory

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/hermetic"
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
	require.Equal(t, uint64(1025<<10), machineAvailable(meminfo))
	require.Equal(t, uint64(math.MaxUint64), machineAvailable(dir+"/none"))
	require.Equal(t, uint64(math.MaxUint64), machineAvailable(write(t, dir+"/odd", "nothing\n")))
}

// The tightest group on the way to the root counts.
func TestGroupAvailable(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cgroup")
	membership := write(t, dir+"/self", "1:name=x:/other\n0::/outer/inner\n")
	write(t, root+"/outer/inner/memory.max", "max\n")
	write(t, root+"/outer/inner/memory.current", "500\n")
	require.Equal(t, uint64(math.MaxUint64), groupAvailable(membership, root))
	write(t, root+"/outer/memory.max", "4096\n")
	write(t, root+"/outer/memory.current", "1096\n")
	require.Equal(t, uint64(3000), groupAvailable(membership, root))
	write(t, root+"/outer/memory.stat", "anon 1\ninactive_file 50\n")
	require.Equal(t, uint64(3050), groupAvailable(membership, root))
	write(t, root+"/outer/inner/memory.max", "400\n")
	require.Equal(t, uint64(0), groupAvailable(membership, root))
}

// In version 1 the memory controller has a hierarchy and a mount of its own.
func TestGroupAvailableOfVersion1(t *testing.T) {
	for _, controllers := range []string{"memory", "cpu,memory"} {
		dir := t.TempDir()
		root := filepath.Join(dir, "cgroup")
		membership := write(t, dir+"/self", "12:pids:/pids\n4:"+controllers+":/docker/a:b\n0::/unified\n")
		require.Equal(t, uint64(math.MaxUint64), groupAvailable(membership, root))
		write(t, root+"/memory/memory.limit_in_bytes", "9223372036854771712\n") // none
		write(t, root+"/memory/memory.usage_in_bytes", "4096\n")
		require.Greater(t, groupAvailable(membership, root), uint64(1<<62))
		write(t, root+"/memory/docker/memory.limit_in_bytes", "5000\n")
		write(t, root+"/memory/docker/memory.usage_in_bytes", "1000\n")
		require.Equal(t, uint64(4000), groupAvailable(membership, root))
		write(t, root+"/memory/docker/memory.stat", "inactive_file 7\ntotal_inactive_file 50\n")
		require.Equal(t, uint64(4050), groupAvailable(membership, root))
		write(t, root+"/memory/docker/a:b/memory.limit_in_bytes", "300\n")
		write(t, root+"/memory/docker/a:b/memory.usage_in_bytes", "200\n")
		require.Equal(t, uint64(100), groupAvailable(membership, root))
		// Both versions can be present; the tighter one counts.
		write(t, root+"/unified/memory.max", "64\n")
		write(t, root+"/unified/memory.current", "4\n")
		require.Equal(t, uint64(60), groupAvailable(membership, root))
	}
}

// In a container the path can be the host's, while the mount begins at the container's group.
func TestGroupAvailableInAContainer(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "cgroup")
	membership := write(t, dir+"/self", "4:memory:/docker/0123\n")
	write(t, root+"/memory/memory.limit_in_bytes", "3000\n")
	write(t, root+"/memory/memory.usage_in_bytes", "1000\n")
	require.Equal(t, uint64(2000), groupAvailable(membership, root))
}
