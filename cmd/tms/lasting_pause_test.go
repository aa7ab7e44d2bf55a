package main

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/fleet"
)

// A pause that the command has made lasts until tms resume, whatever the program itself does.

// asks sends the program a line whose answer comes later.
func (s *steered) asks(line string) {
	s.t.Helper()
	_, err := io.WriteString(s.say, line+"\n")
	require.NoError(s.t, err)
}

// pausedBy returns what tms ps knows of the pauses of a process that are kept.
func (s *steered) pausedBy() []control.LastingPause {
	s.t.Helper()
	return parsed[[]fleet.Process](s.t, succeeds(s.t, "ps", "--json", s.number()))[0].PausedBy
}

func TestAnOperatorsPauseHolds(t *testing.T) {
	for _, everything := range []bool{false, true} {
		for _, gated := range []bool{false, true} {
			t.Run(fmt.Sprint("everything ", everything, ", gated ", gated), func(t *testing.T) {
				var environment []string
				if gated {
					environment = append(environment, reaching(t))
				}
				w := startWhole(t, environment...)
				pause := []string{"pause", w.number(), "--force"}
				if everything {
					pause = append(pause, "--everything")
				}
				succeeds(t, pause...)
				taken := w.other.count("free")
				require.Greater(t, taken, 56)

				// The program cannot take the memory back, neither in a time that it names nor by waiting.
				require.Contains(t, w.do("within 0.01"), "800 others keep this program paused: tms pause (")
				w.asks("again")
				since := w.pausedBy()[0]
				require.Equal(t, os.Geteuid(), since.UID)
				require.WithinDuration(t, time.Now(), time.UnixMicro(int64(since.Since*1e6)), time.Minute)
				require.Zero(t, since.Until)
				require.Equal(t, taken, w.other.count("free"))

				// The operator's resume lets both go on.
				succeeds(t, "resume", w.number())
				require.Equal(t, "0 ", w.line())
				w.asBefore()
				require.Empty(t, w.pausedBy())
				w.do("pause", "resume", "check") // its own pause is its own
			})
		}
	}
}

// The pause also holds where the program had paused the same memory itself, and there was nothing left to take.
func TestAnOperatorsPauseOfWhatTheProgramHasPaused(t *testing.T) {
	w := startWhole(t)
	w.do("pause weights")
	require.Contains(t, succeeds(t, "pause", w.number(), "--force", "--tag", "weights"),
		"nothing to pause: it was paused already, and stays paused from now on")
	w.asks("again")
	require.Equal(t, []string{"weights"}, w.pausedBy()[0].Tags)
	require.Equal(t, 80, w.other.count("free"))
	succeeds(t, "resume", w.number())
	require.Equal(t, "0 ", w.line())
	w.asBefore()

	// A tag that others do not keep is the program's own.
	succeeds(t, "pause", w.number(), "--force", "--tag", "weights")
	w.do("pause cache", "resume cache")
	require.Equal(t, 80, w.other.count("free"))
	w.resumed()
}

// A signal that asks the program to end also ends the wait of its resume. The program then takes its memory to end.
func TestASignalEndsAResumeThatWaits(t *testing.T) {
	e := startEnding(t, "resumes")
	e.pause()
	e.do("go")
	e.says("the program's own resume waits: others keep this program paused: tms pause (")
	require.NotEmpty(t, e.pausedBy())
	e.send(syscall.SIGTERM)
	require.Contains(t, e.ends(), "signal 15")
	e.says("so its own resume no longer waits")
}
