package hermetic

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProcessesThatAreLeft(t *testing.T) {
	meeting := t.TempDir()
	require.NoError(t, allEnded(meeting, 0))
	left := exec.Command("sleep", "600")
	left.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+meeting)
	require.NoError(t, left.Start())
	require.Eventually(t, func() bool { // between fork and exec it is this program
		return allEnded(meeting, time.Millisecond) != nil
	}, time.Minute, time.Millisecond)
	require.Error(t, left.Wait(), "it was killed")
	require.NoError(t, allEnded(meeting, 0))
}
