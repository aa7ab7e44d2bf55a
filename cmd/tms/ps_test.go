package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

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

func TestPsOfSome(t *testing.T) {
	ownSockets(t)
	t.Setenv("COLUMNS", "")
	program := steeredProgram(t)
	one, other := startSteered(t, program), startSteered(t, program)
	first, second, none := one.number(), other.number(), "999999999"
	out := succeeds(t, "ps", first)
	require.Contains(t, out, first)
	require.NotContains(t, out, second)
	require.Contains(t, succeeds(t, "ps", second, first, first), second)
	require.Len(t, parsed[[]process](t, succeeds(t, "ps", "--json", first, second, first)), 2)
	require.Contains(t, succeeds(t, "ps", "--bytes", first), first+" ")

	out, said, code := command(t, "ps", first, none)
	require.Equal(t, exitNoProcess, code)
	require.Contains(t, out, first)
	require.Equal(t, "tms: "+none+": there is no such process\n", said)
	out, _, code = command(t, "ps", none)
	require.Equal(t, exitNoProcess, code)
	require.Empty(t, out)
	out, _, code = command(t, "ps", "--json", none)
	require.Equal(t, exitNoProcess, code)
	require.Equal(t, "[]\n", out)

	// The table is cut to the terminal, or else to COLUMNS.
	require.NotContains(t, succeeds(t, "ps"), program)
	require.Contains(t, succeeds(t, "ps", "--no-trunc"), program)
	t.Setenv("COLUMNS", strconv.Itoa(80+len(program)))
	require.Contains(t, succeeds(t, "ps"), program)
	master, slave := openTerminal(t) // of 80 columns
	c := exec.Command(tms, "ps")
	c.Stdout = slave
	require.NoError(t, c.Start())
	lines := bufio.NewReader(master)
	for range 5 { // a head, and two tags of each
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\r\n")), 80)
	}
	require.NoError(t, c.Wait())
}
