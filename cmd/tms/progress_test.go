package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/vmm/stats"
)

// slowly answers to a pause once it was asked for its status a number of times; each time the pause is 32 MiB further.
func slowly() func(control.SteerRequest) control.Reply {
	const looks, each = 3, 32 << 20
	pausing := make(chan int64, 100) // status requests since the pause began
	var asked atomic.Int64
	asked.Store(-1)
	return func(r control.SteerRequest) control.Reply {
		switch r.Op {
		case control.Status:
			state := control.ProcessState{Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{{}}}}}
			if asked.Load() >= 0 {
				now := asked.Add(1)
				state.Doing = control.Pause
				state.Stats.Devices[0].Progress = &stats.Progress{Operation: "pause",
					Done: uint64(min(now, looks)) * each, Total: looks * each}
				pausing <- now
			}
			return control.Reply{OK: true, Process: ownState(state)}
		case control.Pause:
			asked.Store(0)
			for <-pausing < looks {
				continue
			}
			asked.Store(-1)
			return control.Reply{OK: true, Bytes: looks * each, Seconds: 1.5}
		}
		return control.Reply{OK: true}
	}
}

func TestProgress(t *testing.T) {
	hermetic.Thorough(t)
	ownSockets(t)
	start := func() *steered { return answering(t, "slow") }
	pid := start().number()
	out, told, code := command(t, "pause", pid)
	require.Zero(t, code, told)
	require.Equal(t, pid+": paused, 96.00 MiB freed in 1.50 s\n", out)
	require.Regexp(t, `^(tms: pausing `+pid+` \d{1,3}%, \d+\.\d\d MiB of 96\.00 MiB, \d s\n){2,}$`, told)
	first, last, _ := strings.Cut(strings.TrimSpace(told), "\n")
	require.NotEqual(t, first, last)

	one, silent := start().number(), start().Process.Pid
	_, told, _ = command(t, "pause", "--all")
	require.Contains(t, told, "tms: pausing 3 processes ")
	go func() { // because no other client asks
		for range 3 {
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

// The progress of a real process is printed, too; for one that reports none, the time.
func TestProgressOfAWait(t *testing.T) {
	large, _, _ := pair(t)
	_, told, code := command(t, "resume", large.number(), "--wait", "2.5")
	require.Equal(t, exitNo, code)
	require.Regexp(t, `^(tms: resuming `+large.number()+`( 0%, 0 bytes of .*)?, \d s\n)+tms: `+large.number()+
		`: resume: `, told)
}

// A look that takes long is followed by nine times as long without one: 200 processes that were asked all the time
// needed 42 s for a resume of one second.
func TestLooksTakeATenthOfTheTime(t *testing.T) {
	require.Equal(t, 3*time.Second, nextLook(3*time.Second, 2*time.Second, 10*time.Millisecond))
	require.Equal(t, 20*time.Second, nextLook(3*time.Second, 2*time.Second, 2*time.Second))
}
