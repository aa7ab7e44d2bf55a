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

	"tms/internal/control"
	"tms/vmm"
)

// slow is a process that takes its time for what it is asked, as another one tells: 64 MiB each second.
func slow(t *testing.T, takes time.Duration) (pid int) {
	t.Helper()
	body := exec.Command("sleep", "600")
	require.NoError(t, body.Start())
	t.Cleanup(func() {
		_ = body.Process.Kill()
		_ = body.Wait()
	})
	pid = body.Process.Pid
	directory := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "tms")
	require.NoError(t, control.MakeDirectory(directory, os.Geteuid()))
	listener, err := net.Listen("unix", filepath.Join(directory, control.Name(pid)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	var begun atomic.Pointer[time.Time]
	total := uint64(takes.Seconds() * (64 << 20))
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
				state := control.ProcessState{PID: pid, Gated: true, Stats: vmm.Stats{Devices: []vmm.DeviceStats{{}}}}
				if at := begun.Load(); at != nil {
					state.Doing = control.Pause
					copied := min(total, uint64(time.Since(*at).Seconds()*(64<<20)))
					state.Stats.Devices[0].Progress = &vmm.Progress{Operation: "pause", Done: copied, Total: total}
				}
				reply.Process, _ = json.Marshal(state)
			case control.Pause:
				now := time.Now()
				begun.Store(&now)
				time.Sleep(takes)
				reply.Bytes, reply.Seconds = total, takes.Seconds()
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
	pid := slow(t, 3500*time.Millisecond)
	out, told, code := command(t, "pause", fmt.Sprint(pid))
	require.Zero(t, code, told)
	require.Equal(t, fmt.Sprintf("%d: paused, 224.00 MiB freed in 3.50 s\n", pid), out)
	require.Regexp(t, fmt.Sprintf(`^(tms: pausing %d \d{1,3}%%, \d+\.\d\d MiB of 224\.00 MiB, \d s\n){2,}$`, pid), told)
	first, last, _ := strings.Cut(strings.TrimSpace(told), "\n")
	require.NotEqual(t, first, last)

	one, other := fmt.Sprint(slow(t, 1500*time.Millisecond)), fmt.Sprint(slow(t, 1500*time.Millisecond))
	_, told, _ = command(t, "pause", "--all")
	require.Contains(t, told, "tms: pausing 3 processes ")
	_, told, code = command(t, "pause", one, other, "--json")
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
		result := one + ": paused, 96.00 MiB freed in 1.50 s\r\n\x00"
		require.True(t, strings.HasSuffix(text, result), "%q", text)
		text = strings.TrimSuffix(text, result)
		if kind == "dumb" {
			require.Regexp(t, `^(tms: pausing `+one+` \d{1,3}%, .* of 96\.00 MiB, \d s\r\n)+$`, text)
			continue
		}
		require.True(t, strings.HasSuffix(text, "\r\x1b[K"), "the bar is gone: %q", text)
		bars := strings.Split(strings.TrimSuffix(text, "\r\x1b[K"), "\r")[1:]
		require.Greater(t, len(bars), 1)
		for _, bar := range bars {
			require.Regexp(t, `^pausing `+one+` \[#*-*\] \d{1,3}%, .* of 96\.00 MiB, \d s\x1b\[K$`, bar)
			require.Less(t, len(bar), 80+len("\x1b[K"))
		}
		require.Greater(t, strings.Count(bars[len(bars)-1], "#"), strings.Count(bars[0], "#"))
	}
}

// What a real process does is told, too; and of one that has nothing to tell the time.
func TestProgressOfAWait(t *testing.T) {
	large, _, _ := pair(t)
	_, told, code := command(t, "resume", large.number(), "--wait", "2.5")
	require.Equal(t, exitNo, code)
	require.Regexp(t, `^(tms: resuming `+large.number()+`( 0%, 0 B of .*)?, \d s\n)+tms: `+large.number()+`: resume: `, told)
}
