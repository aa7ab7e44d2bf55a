package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		"0::/system.slice/containerd.service/kubepods-pod" + pod + ".slice:cri-containerd:" + number + "\n": {number, pod},
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

func TestWatch(t *testing.T) {
	large, small, _ := pair(t)
	for _, c := range []struct {
		arguments []string
		apart     bool
	}{{[]string{"ps", "--watch", "0.1"}, true}, {[]string{"ps", "--watch=0.1", "--json"}, false}} {
		watch := exec.Command(tms, c.arguments...)
		stdout, err := watch.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, watch.Start())
		lines, tables := bufio.NewScanner(stdout), 0
		for tables < 3 && lines.Scan() {
			switch {
			case !c.apart:
				var found []process
				require.NoError(t, json.Unmarshal(lines.Bytes(), &found))
				require.Len(t, found, 2)
				require.Equal(t, small.Process.Pid, found[0].PID, "who holds most comes first, whatever its number")
				tables++
			case lines.Text() == "":
				tables++
			default:
				require.Regexp(t, `^ *(PID|\d+:?) `, lines.Text())
			}
		}
		require.Equal(t, 3, tables)
		require.NoError(t, watch.Process.Signal(os.Interrupt))
		require.NoError(t, watch.Wait(), "interrupted, it ends well")
	}

	_, words, code := command(t, "swap", small.number(), large.number())
	require.Zero(t, code, words)
	require.Equal(t, large.Process.Pid, statuses(answerTime)[0].PID)

	for _, kind := range []string{"xterm", "dumb"} {
		master, slave := openTerminal(t)
		watch := exec.Command(tms, "ps", "--watch=0.1")
		watch.Stdout, watch.Env = slave, append(os.Environ(), "TERM="+kind)
		require.NoError(t, watch.Start())
		ending := time.AfterFunc(time.Minute, func() { // a read of the terminal would wait for ever
			_ = watch.Process.Kill()
			_, _ = slave.WriteString("PID PID PID")
		})
		var text []byte
		buffer := make([]byte, 4096)
		for bytes.Count(text, []byte("PID")) < 3 {
			n, err := master.Read(buffer)
			require.NoError(t, err)
			text = append(text, buffer[:n]...)
		}
		require.True(t, ending.Stop())
		require.NoError(t, watch.Process.Signal(os.Interrupt))
		require.NoError(t, watch.Wait())
		if kind == "dumb" {
			require.NotContains(t, string(text), "\x1b")
			require.Contains(t, string(text), "weights")
			continue
		}
		require.Equal(t, 1, bytes.Count(text, []byte("\x1b[2J")))
		screens := strings.Split(string(text), "\x1b[H")[1:]
		require.GreaterOrEqual(t, len(screens), 3)
		shown := strings.Split(screens[0], "\n")
		require.Len(t, shown, 4, "in one place, and no more than fits")
		require.Contains(t, shown[2], "… and 5 lines more\x1b[K")
	}
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
