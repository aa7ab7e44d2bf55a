package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/hermetic"
)

// Ranks that have each other's memory open are paused together, or not at all; one alone is refused, by name.
func TestJobThatSharesMemory(t *testing.T) {
	ownSockets(t)
	const count = 3
	ranks := startJob(t, count, func(rank int) []string {
		environment := []string{"MASTER_ADDR=here", "MASTER_PORT=29501", "COLLECTIVE_SHARES=1"}
		if rank == 1 { // its second unmapping is refused: what is its own, when others' is unmapped already
			environment = append(environment, "CUDASIM_FAIL=cuMemUnmap:2:999")
		}
		return environment
	})
	_, words, code := command(t, "pause", "--job", "here:29501", "--timeout", "60")
	require.Equal(t, exitNo, code)
	require.Regexp(t, "(?m)^tms: "+ranks[1].number()+": .*999", words)
	require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))
	for range hermetic.Often(3, 1) {
		_, words, code = command(t, "pause", "--job", "here:29501", "--timeout", "60")
		require.Zero(t, code, words)
		require.Equal(t, repeated(0, count), jobHeld(t, ranks))
		_, words, code = command(t, "resume", "--job", "here:29501")
		require.Zero(t, code, words)
		require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))
	}

	// And all the rest by the driver: nothing is shared any more then.
	_, words, code = command(t, "pause", "--job", "here:29501", "--everything", "--timeout", "60")
	require.Zero(t, code, words)
	_, words, code = command(t, "resume", "--job", "here:29501")
	require.Zero(t, code, words)
	require.Equal(t, repeated(rankBytes, count), jobHeld(t, ranks))

	// Killed at any moment.
	for i := range hermetic.Often(8, 2) {
		pausing := exec.Command(tms, "pause", "--job", "here:29501", "--timeout", "60")
		require.NoError(t, pausing.Start())
		time.Sleep(time.Duration(i) * 30 * time.Millisecond)
		kill := i%2 == 0
		require.NoError(t, pausing.Process.Signal([]os.Signal{syscall.SIGKILL, os.Interrupt}[i%2]))
		if pausing.Wait() == nil || kill && wasKept(t, ranks) {
			_, words, code := command(t, "resume", "--job", "here:29501")
			require.Zero(t, code, words)
		}
		require.Eventually(t, func() bool {
			return fmt.Sprint(jobHeld(t, ranks)) == fmt.Sprint(repeated(rankBytes, count))
		}, time.Minute, time.Millisecond)
	}

	last := ranks[0].do("stop")
	for _, r := range ranks[1:] {
		require.Equal(t, last, r.line())
	}
}
