package main

import (
	"os"
	"path/filepath"
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
	shares := []string{reaching(t), "CUDASIM_MEMORY=76M", "TMS_SHARE=1", "TMS_SHARE_AT_LEAST=0", "TMS_COMMAND=" + tms,
		"TMS_EXTENT_BYTES=1", "CUDASIM_SHARED=" + filepath.Base(os.Getenv("TMPDIR"))}
	one := startSteered(t, steeredProgram(t), shares...)
	one.do("allocate") // as much again
	other := startSteered(t, steeredProgram(t), shares...)
	other.do("allocate")
	turn := func() {
		t.Helper()
		require.Equal(t, "ok", one.do("check")) // which waits for its memory
		one, other = other, one
	}
	turn()
	turn()

	// While a copy of the one stands, the other has its first contents in memory that was given back before.
	fired := other.count("fired")
	other.do("fail cuMemcpyDtoHAsync 2 -2")
	checked := one.background("check")
	require.Eventually(t, func() bool {
		state, err := status(one.Process.Pid, time.Minute)
		require.NoError(t, err)
		progress := state.Stats.Devices[0].Progress
		return state.Doing == control.Undo && progress != nil && progress.Done > 0
	}, time.Minute, 5*time.Millisecond)
	require.Equal(t, fired+1, other.count("fired"))
	require.Equal(t, control.Pause, other.doing())
	other.do("fail")
	require.Equal(t, "ok", <-checked)
	one, other = other, one

	for _, call := range []string{"cuMemUnmap 1", "cuMemUnmap 2", "cuMemRelease 2", "cuMemcpyDtoHAsync 1",
		"cuMemcpyDtoHAsync 2", "cuMemCreate 1", "cuMemMap 2", "cuMemcpyHtoDAsync 1"} {
		for _, s := range []*steered{one, other} {
			before := s.count("fired")
			s.do("fail " + call)
			turn()
			turn()
			require.Greater(t, s.count("fired"), before, call)
			s.do("fail")
		}
	}
}
