package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// If host memory has no room for its contents, a program lends nothing, unless a directory for files is named.
func TestShareAndHostMemory(t *testing.T) {
	start := sharesDevice(t)
	one := start("--share --host-limit 50M", 60, 1, 1000000, 1)
	one.has(t, 60<<20)
	require.Regexp(t, fmt.Sprintf(`^2 60\.00 MiB are needed, .* MiB are free and others could lend 0 bytes; %d cannot be `+
		`paused: its contents need 60\.00 MiB of host memory, and there is room for 50\.00 MiB$`, one.Process.Pid),
		start("--share", 60, 1, 1, 0).ends(t))
	require.NoError(t, one.Process.Kill())

	directory := t.TempDir()
	t.Setenv("TMS_DISK_BACKUP_DIR", directory)
	one = start("--share --host-limit 50M", 60, 1, 3000, 1)
	one.has(t, 60<<20)
	other := start("--share", 60, 1, 1000000, 1)
	other.has(t, 60<<20)
	require.NotZero(t, filesOf(t, one.Process.Pid, directory))
	require.NoError(t, other.Process.Kill())
	require.Equal(t, "300000", one.ends(t))
}

// Programs on two devices that find room for the contents of one at the same time do not both take it.
func TestShareBudgetsHostMemoryOnce(t *testing.T) {
	hermetic.Thorough(t)
	t.Setenv("CUDASIM_DEVICES", "2")
	start := sharesDevice(t)
	for range 3 {
		var holders, askers []*runningSharer
		for device := range 2 {
			holders = append(holders, start("--share --host-limit 70M", 60, 1, 1000000, 500, device))
			holders[device].has(t, 60<<20)
		}
		ended := make(chan int, 2)
		for device := range 2 {
			asker := start("--share --at-least 1h", 60, 1, 1000000, 0, device)
			askers = append(askers, asker)
			go func() {
				_ = asker.Wait()
				ended <- device
			}()
		}
		refused := <-ended
		require.Regexp(t, `^2 .*its contents need 60\.00 MiB of host memory`, askers[refused].out.String())
		askers[1-refused].has(t, 60<<20)
		require.EqualValues(t, 60<<20, held(t, &steered{Cmd: holders[refused].Cmd, t: t}), "nothing is copied in vain")
		for _, s := range append(holders, askers[1-refused]) {
			require.NoError(t, s.Process.Kill())
		}
		<-ended
		for _, s := range holders {
			_ = s.Wait()
		}
	}
}
