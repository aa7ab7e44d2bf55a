package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/vmm/stats"
)

// slow starts a process that finishes a request once it was asked for its status a number of times; each time its pause
// is 32 MiB further. This process answers in its place.
func slow(t *testing.T, looks int64) (pid int) {
	t.Helper()
	body := exec.Command(steeredProgram(t))
	directory := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms")
	require.NoError(t, control.MakeDirectory(directory, os.Geteuid()))
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	file := os.NewFile(uintptr(socket), "socket")
	defer func() { _ = file.Close() }()
	body.Env, body.ExtraFiles = append(os.Environ(), "LD_LIBRARY_PATH="+built(t, "sim")), []*os.File{file}
	listens := startProgram(t, body)
	pid = body.Process.Pid
	require.NoError(t, unix.Bind(socket, &unix.SockaddrUnix{Name: filepath.Join(directory, control.Name(pid))}))
	require.Equal(t, "ok", listens.do("listen 3")) // for the kernel that process listens
	listener, err := net.FileListener(file)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	const each = 32 << 20
	pausing := make(chan int64, 100) // status requests since the pause began
	var asked atomic.Int64
	asked.Store(-1)
	answer := func(connection net.Conn) {
		defer func() { _ = connection.Close() }()
		for lines := bufio.NewScanner(connection); lines.Scan(); {
			request, err := control.ParseRequest(lines.Bytes())
			if err != nil {
				t.Error(err)
				return
			}
			reply := control.Reply{Version: control.Version, ID: request.ID, OK: true}
			switch request.Op {
			case control.Status:
				state := control.ProcessState{PID: pid, Gated: true, Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{{}}}}}
				if asked.Load() >= 0 {
					now := asked.Add(1)
					state.Doing = control.Pause
					state.Stats.Devices[0].Progress = &stats.Progress{Operation: "pause", Done: uint64(min(now, looks)) * each, Total: uint64(looks) * each}
					pausing <- now
				}
				reply.Process, _ = json.Marshal(state)
			case control.Pause:
				asked.Store(0)
				for <-pausing < looks {
					continue
				}
				asked.Store(-1)
				reply.Bytes, reply.Seconds = uint64(looks)*each, 1.5
			}
			if _, err := connection.Write(control.Line(reply)); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(connection)
		}
	}()
	return pid
}

func TestProgress(t *testing.T) {
	ownSockets(t)
	pid := slow(t, 4)
	out, told, code := command(t, "pause", fmt.Sprint(pid))
	require.Zero(t, code, told)
	require.Equal(t, fmt.Sprintf("%d: paused, 128.00 MiB freed in 1.50 s\n", pid), out)
	require.Regexp(t, fmt.Sprintf(`^(tms: pausing %d \d{1,3}%%, \d+\.\d\d MiB of 128\.00 MiB, \d s\n){2,}$`, pid), told)
	first, last, _ := strings.Cut(strings.TrimSpace(told), "\n")
	require.NotEqual(t, first, last)

	one, silent := fmt.Sprint(slow(t, 4)), slow(t, 4)
	_, told, _ = command(t, "pause", "--all")
	require.Contains(t, told, "tms: pausing 3 processes ")
	go func() { // because nobody else asks
		for range 4 {
			time.Sleep(lineEvery)
			_, _ = status(silent, time.Minute)
		}
	}()
	_, told, code = command(t, "pause", fmt.Sprint(silent), "--json")
	require.Zero(t, code)
	require.Empty(t, told)

	for _, kind := range []string{"xterm", "dumb"} {
		master, terminal := openTerminal(t)
		pause := exec.Command(tms, "pause", one)
		pause.Stdout, pause.Stderr, pause.Env = terminal, terminal, append(os.Environ(), "TERM="+kind)
		require.NoError(t, pause.Run())
		_, err := terminal.WriteString("\x00")
		require.NoError(t, err)
		text, err := bufio.NewReader(master).ReadString(0)
		require.NoError(t, err)
		result := one + ": paused, 128.00 MiB freed in 1.50 s\r\n\x00"
		require.True(t, strings.HasSuffix(text, result), "%q", text)
		text = strings.TrimSuffix(text, result)
		if kind == "dumb" {
			require.Regexp(t, `^(tms: pausing `+one+` \d{1,3}%, .* of 128\.00 MiB, \d s\r\n)+$`, text)
			continue
		}
		require.True(t, strings.HasSuffix(text, "\r\x1b[K"), "the bar is gone: %q", text)
		bars := strings.Split(strings.TrimSuffix(text, "\r\x1b[K"), "\r")[1:]
		require.Greater(t, len(bars), 1)
		for _, bar := range bars {
			require.Regexp(t, `^pausing `+one+` \[#*-*\] \d{1,3}%, .* of 128\.00 MiB, \d s\x1b\[K$`, bar)
			require.Less(t, len(bar), 80+len("\x1b[K"))
		}
		require.Greater(t, strings.Count(bars[len(bars)-1], "#"), strings.Count(bars[0], "#"))
	}
}

// The progress of a real process is printed, too; for one that reports none, the time.
func TestProgressOfAWait(t *testing.T) {
	large, _, _ := pair(t)
	_, told, code := command(t, "resume", large.number(), "--wait", "2.5")
	require.Equal(t, exitNo, code)
	require.Regexp(t, `^(tms: resuming `+large.number()+`( 0%, 0 bytes of .*)?, \d s\n)+tms: `+large.number()+`: resume: `, told)
}
