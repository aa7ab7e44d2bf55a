package vmm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/cuda"
)

// A resume that waits for memory takes none that would not suffice, says once why it waits, and outlives a driver that
// does not say what is free.
func TestAResumeWaitsWithoutMemory(t *testing.T) {
	sim, driver, engine := simulatedWith(t, 1, "64M")
	lines := make(chan string, 10)
	vmm.HostOf(engine).SetWarn(func(line string) { lines <- line })
	vmm.HostOf(engine).SetHolders(func(uuid string) string { return "; held by " + uuid[:4] })
	address, err := engine.Malloc(vmm.Request{Size: 40 * mib, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, err)
	*wordAt(address) = 7
	_, err = engine.Pause(vmm.Options{})
	require.NoError(t, err)
	other, err := driver.MemCreate(40*mib, 0)
	require.NoError(t, err)
	resume := func(wait time.Duration) error {
		_, err := engine.Resume(vmm.Options{Tags: []string{"t"}, Wait: wait})
		return err
	}
	require.ErrorIs(t, resume(0), cuda.OutOfMemory)
	require.Empty(t, lines, "it did not wait")
	made := uint64(0)
	for range 3 { // the parts of one wait: only the first tries
		err = resume(10 * time.Millisecond)
		require.ErrorIs(t, err, cuda.OutOfMemory)
		require.Equal(t, "resume: device 0 has 24.00 MiB free and 40.00 MiB are needed", err.Error())
		now := sim.Stat("calls:cuMemCreate")
		require.True(t, made == 0 || made == now)
		made = now
	}
	require.Equal(t, `the resume of "t" waits for memory: device 0 has 24.00 MiB free and 40.00 MiB are needed; `+
		"held by GPU-", <-lines)
	done := make(chan error)
	go func() { done <- resume(time.Hour) }()
	looks := sim.Stat("calls:cuMemGetInfo_v2")
	require.Eventually(t, func() bool { return sim.Stat("calls:cuMemGetInfo_v2") > looks+3 }, time.Minute,
		time.Millisecond)
	require.Equal(t, made, sim.Stat("calls:cuMemCreate"))
	sim.Fail("cuMemGetInfo", 1, int(cuda.Unknown)) // it then finds out by trying
	require.Eventually(t, func() bool { return sim.Stat("calls:cuMemCreate") > made }, time.Minute, time.Millisecond)
	require.NoError(t, driver.MemRelease(other))
	require.NoError(t, <-done)
	require.EqualValues(t, 7, *wordAt(address))
	require.Empty(t, lines)
	require.NoError(t, engine.Free(address, false))
}
