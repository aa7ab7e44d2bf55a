package backup

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

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
