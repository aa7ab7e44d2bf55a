package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/fleet"
	"tms/internal/group"
)

// The process that holds most comes first, whatever its number.
func TestOrderOfProcesses(t *testing.T) {
	large, small, _ := pair(t)
	found := parsed[[]fleet.Process](t, succeeds(t, "ps", "--json"))
	require.Len(t, found, 2)
	require.Equal(t, small.Process.Pid, found[0].PID)

	succeeds(t, "swap", small.number(), large.number())
	require.Equal(t, large.Process.Pid, fleet.Ask(group.AnswerTime)[0].PID)
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
	require.Len(t, parsed[[]fleet.Process](t, succeeds(t, "ps", "--json", first, second, first)), 2)
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
