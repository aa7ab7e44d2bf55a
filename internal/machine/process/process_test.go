package process

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that is killed closes its descriptors before it counts as ended. A program that sees them closed finds it
// ending.
func TestEnding(t *testing.T) {
	for range 20 {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		sleep := exec.Command("sleep", "600")
		sleep.ExtraFiles = []*os.File{write}
		require.NoError(t, sleep.Start())
		require.NoError(t, write.Close())
		start, _, err := Started(sleep.Process.Pid)
		require.NoError(t, err)
		require.False(t, Ending(sleep.Process.Pid, start))
		require.True(t, Ending(sleep.Process.Pid, start+1), "another process of that number")
		require.NoError(t, sleep.Process.Kill())
		_, _ = read.Read(make([]byte, 1))
		require.True(t, Ending(sleep.Process.Pid, start))
		require.NoError(t, read.Close())
		require.Error(t, sleep.Wait())
		require.True(t, Ending(sleep.Process.Pid, start))
	}
}
