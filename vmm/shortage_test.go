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
	const device = "device 0 (GPU-63756461-7369-6d2d-6465-766963652d00)"
	for range 3 { // the parts of one wait: only the first tries
		err = resume(10 * time.Millisecond)
		require.ErrorIs(t, err, cuda.OutOfMemory)
		require.Equal(t, "resume: "+device+" has 24.00 MiB free and 40.00 MiB are needed", err.Error())
		now := sim.Stat("calls:cuMemCreate")
		require.True(t, made == 0 || made == now)
		made = now
	}
	require.Equal(t, `the resume of "t" waits for memory: `+device+
		" has 24.00 MiB free and 40.00 MiB are needed; held by GPU-", <-lines)
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

// A wait for memory is one transition, and ends when it is cancelled.
func TestAWaitIsOneTransitionAndEndsWithItsCaller(t *testing.T) {
	sim, driver, engine := simulatedWith(t, 1, "64M")
	var seen []vmm.Transition
	vmm.HostOf(engine).SetObserve(func(of vmm.Transition) { seen = append(seen, of) })
	address, err := engine.Malloc(vmm.Request{Size: 40 * mib, Tag: "t"})
	require.NoError(t, err)
	_, err = engine.Pause(vmm.Options{})
	require.NoError(t, err)
	other, err := driver.MemCreate(40*mib, 0)
	require.NoError(t, err)

	cancel, done := make(chan struct{}), make(chan error)
	go func() {
		_, err := engine.Resume(vmm.Options{Wait: time.Hour, Cancel: cancel})
		done <- err
	}()
	looks := sim.Stat("calls:cuMemGetInfo_v2")
	require.Eventually(t, func() bool { return sim.Stat("calls:cuMemGetInfo_v2") > looks+5 }, time.Minute,
		time.Millisecond)
	close(cancel)
	require.ErrorIs(t, <-done, cuda.OutOfMemory)
	require.Len(t, seen, 4)
	require.False(t, seen[2].Over)
	require.True(t, seen[3].Over)
	require.ErrorIs(t, seen[3].Err, cuda.OutOfMemory)
	require.Positive(t, seen[3].Waited)
	require.Zero(t, seen[3].Copied)

	// A caller that asks again itself: the resume that succeeds is the transition, and has the whole wait.
	asked := time.Now()
	retried := vmm.Options{Wait: time.Hour, Retried: true}
	for range 3 {
		_, err = engine.Resume(retried)
		require.ErrorIs(t, err, cuda.OutOfMemory)
		retried.Asked = asked
	}
	require.Len(t, seen, 4)
	require.NoError(t, driver.MemRelease(other))
	lasted := time.Since(asked)
	_, err = engine.Resume(retried)
	require.NoError(t, err)
	require.Len(t, seen, 6)
	require.NoError(t, seen[5].Err)
	require.GreaterOrEqual(t, seen[5].Waited, lasted)
	require.NoError(t, engine.Free(address, false))
}

// A resume that is short of memory asks for what it lacks as often as that helps.
func TestAResumeAsksForRoom(t *testing.T) {
	_, driver, engine := simulatedWith(t, 1, "64M")
	address, err := engine.Malloc(vmm.Request{Size: 40 * mib, Tag: "t"})
	require.NoError(t, err)
	_, err = engine.Pause(vmm.Options{})
	require.NoError(t, err)
	var others []cuda.Handle
	for range 2 {
		other, err := driver.MemCreate(20*mib, 0)
		require.NoError(t, err)
		others = append(others, other)
	}
	asked := 0
	mapped, err := engine.Resume(vmm.Options{MakeRoom: func(ordinal int, bytes uint64) bool {
		require.Zero(t, ordinal)
		require.EqualValues(t, 40*mib, bytes)
		require.NoError(t, driver.MemRelease(others[asked]))
		asked++
		return asked <= 2
	}})
	require.NoError(t, err)
	require.EqualValues(t, 40*mib, mapped)
	require.Equal(t, 1, asked)
	require.NoError(t, driver.MemRelease(others[1]))
	require.NoError(t, engine.Free(address, false))
}
