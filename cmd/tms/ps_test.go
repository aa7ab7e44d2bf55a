package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestContainer(t *testing.T) {
	number := strings.Repeat("0123456789abcdef", 4)
	pod := "1a2b3c4d-0000-1111-2222-333344445555"
	for text, want := range map[string]container{
		"0::/\n":                                                       {},
		"0::/user.slice/user-0.slice\n":                                {},
		"0::/docker/" + number + "\n":                                  {Container: number},
		"12:cpu:/docker/" + number + "/sub\n":                          {Container: number},
		"0::/system.slice/docker-" + number + ".scope\n":               {Container: number},
		"0::/machine.slice/libpod-" + number + ".scope/container\n":    {Container: number},
		"4:memory:/kubepods/burstable/pod" + pod + "/" + number + "\n": {Container: number, Pod: pod},
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(pod, "-", "_") +
			".slice/cri-containerd-" + number + ".scope\n": {Container: number, Pod: pod},
		"0::/system.slice/containerd.service/kubepods-pod" + pod + ".slice:cri-containerd:" + number +
			"\n": {number, pod},
		"0::/docker/" + number + "ff\n":               {},
		"0::/x/pod1a2b3c4d/docker-" + number + "-x\n": {},
		"nothing": {},
	} {
		path := filepath.Join(t.TempDir(), "cgroup")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.Equal(t, want, containerOf(path), text)
	}
	require.Equal(t, container{}, containerOf("/proc/0/cgroup"))
	require.Equal(t, "1a2b3c4d", container{number, pod}.short())
	require.Equal(t, "01234567", container{Container: number}.short())
}

// The process that holds most comes first, whatever its number.
func TestOrderOfProcesses(t *testing.T) {
	large, small, _ := pair(t)
	found := parsed[[]process](t, succeeds(t, "ps", "--json"))
	require.Len(t, found, 2)
	require.Equal(t, small.Process.Pid, found[0].PID)

	succeeds(t, "swap", small.number(), large.number())
	require.Equal(t, large.Process.Pid, statuses(answerTime)[0].PID)
}

// openTerminal opens a terminal of four lines.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = slave.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 4, Col: 80}))
	return master, slave
}
