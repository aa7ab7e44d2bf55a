package main

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
)

// Two that always have work and do not fit together each get to work, again and again, and find what they wrote.
func TestShareTakesTurns(t *testing.T) {
	ownSockets(t)
	shares := []string{reaching(t), "CUDASIM_MEMORY=44M", "TMS_SHARE=1", "TMS_SHARE_AT_LEAST=0.1", "TMS_COMMAND=" + tms,
		"CUDASIM_SHARED=" + filepath.Base(os.Getenv("TMPDIR"))}
	one := startSteered(t, steeredProgram(t), shares...)
	require.Equal(t, "ok", one.do("work"))
	other := startSteered(t, steeredProgram(t), shares...)
	require.Equal(t, "ok", other.do("work"))
	for _, s := range []*steered{one, other, one, other, one, other} {
		require.Eventually(t, func() bool { return held(t, s) < smallBytes }, time.Minute, time.Millisecond, "its turn ends")
		before := s.count("cycles")
		require.Eventually(t, func() bool { return s.count("cycles") > before }, time.Minute, 5*time.Millisecond)
	}
	for _, answer := range []<-chan string{one.background("calm"), other.background("calm")} {
		require.NotEmpty(t, <-answer) // its threads have found what they wrote, and have ended
	}
	for _, answer := range []<-chan string{one.background("check"), other.background("check")} {
		require.Equal(t, "ok", <-answer)
	}
}

// In a turn, the one takes its memory back while the other still gives it away; whichever call fails in one of them,
// both go on, and find what they wrote.
func TestShareTakesTurnsInBothDirections(t *testing.T) {
	ownSockets(t)
	shares := []string{reaching(t), "CUDASIM_MEMORY=44M", "TMS_SHARE=1", "TMS_SHARE_AT_LEAST=0", "TMS_COMMAND=" + tms,
		"CUDASIM_SHARED=" + filepath.Base(os.Getenv("TMPDIR"))}
	one, other := startSteered(t, steeredProgram(t), shares...), startSteered(t, steeredProgram(t), shares...)
	turn := func() {
		t.Helper()
		require.Equal(t, "ok", one.do("check")) // which waits for its memory
		one, other = other, one
	}
	turn()
	turn()
	first, second := one, other

	// Both are seen at it at once.
	var seen atomic.Bool
	watched, ends := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for !seen.Load() {
			select {
			case <-ends:
				return
			default:
			}
			is := func(s *steered, doing string) bool {
				state, err := status(s.Process.Pid, time.Minute)
				return err == nil && state.Doing == doing
			}
			both := func(in, out *steered) bool {
				return is(in, control.Undo) && is(out, control.Pause) && is(in, control.Undo)
			}
			seen.Store(both(first, second) || both(second, first))
		}
	}()
	for until := time.Now().Add(time.Minute); !seen.Load() && time.Now().Before(until); {
		turn()
	}
	close(ends)
	<-watched
	require.True(t, seen.Load())

	for _, call := range []string{"cuMemUnmap 1", "cuMemUnmap 2", "cuMemRelease 2", "cuMemcpyDtoHAsync 1", "cuMemCreate 1",
		"cuMemMap 2", "cuMemcpyHtoDAsync 1"} {
		for _, s := range []*steered{one, other} {
			s.do("fail " + call)
			turn()
			turn()
			s.do("fail")
		}
	}
}
