package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memoryGroup is a control group with a limit of memory, as a pod of Kubernetes has it.
type memoryGroup struct {
	t                 *testing.T
	path, most, inUse string
}

func newMemoryGroup(t *testing.T) *memoryGroup {
	t.Helper()
	var failed error
	for _, g := range []memoryGroup{{t, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
		{t, "/sys/fs/cgroup", "memory.max", "memory.current"}} {
		if g.path, failed = os.MkdirTemp(g.path, "tms-test-"); failed != nil {
			continue
		}
		t.Cleanup(func() { require.NoError(t, os.Remove(g.path)) }) // its processes have ended
		if _, failed = os.Stat(filepath.Join(g.path, g.most)); failed == nil {
			return &g
		}
	}
	t.Skipf("no control group can limit memory here: %v", failed)
	return nil
}

func (g *memoryGroup) write(file, text string) {
	g.t.Helper()
	require.NoError(g.t, os.WriteFile(filepath.Join(g.path, file), []byte(text), 0o600))
}

func (g *memoryGroup) used() uint64 {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.path, g.inUse))
	require.NoError(g.t, err)
	bytes, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	require.NoError(g.t, err)
	return bytes
}

// leaves sets the limit to what is in use, and these bytes.
func (g *memoryGroup) leaves(bytes uint64) {
	g.t.Helper()
	g.write(g.most, strconv.FormatUint(g.used()+bytes, 10))
}

// An emptyDir with the medium Memory is a tmpfs, and its files count towards the pod, as contents in host memory do. What
// has no room is refused, where the kernel would kill the program.
func TestAPodsMemoryLimit(t *testing.T) {
	var system unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &system); err != nil || system.Type != unix.TMPFS_MAGIC {
		t.Skipf("/dev/shm is no tmpfs here: %v", err)
	}
	directory, err := os.MkdirTemp("/dev/shm", "tms-test-")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.Remove(directory), "no files are left") }()
	ownSockets(t)
	group := newMemoryGroup(t)
	s := startSteered(t, steeredProgram(t), "CUDASIM_MEMORY=1G", "TMS_DISK_BACKUP_DIR="+directory, reaching(t))
	const contents = 256 << 20
	s.do("more 256")
	group.write("cgroup.procs", s.number())
	for _, to := range []string{"host", "disk"} {
		group.leaves(contents / 2)
		fails(t, exitNo, "not enough host memory", "pause", "--tag", "more", "--to", to, s.number())
		require.Equal(t, "ok", s.do("check"), "it goes on")
		group.leaves(4 * contents) // the simulated device's memory is the program's, and comes back
		succeeds(t, "pause", "--tag", "more", "--to", to, s.number())
		require.GreaterOrEqual(t, group.used(), uint64(contents), to)
		succeeds(t, "resume", s.number())
		require.Equal(t, "ok", s.do("check"))
	}
}
