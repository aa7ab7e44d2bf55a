package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
