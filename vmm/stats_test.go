package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// Statistics show what the driver refuses to take back until it has it.
func TestStatsTellWhatIsRefused(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(engine, nothing))
	failpoint.Set(func(call string) error {
		if call == "cuMemHostUnregister" || call == "cuMemRelease" {
			return cuda.Unknown
		}
		return nil
	})
	defer failpoint.Set(nil)
	require.NoError(t, resume(engine, nothing))
	require.NoError(t, engine.Free(a, false))
	for range 2 {
		engine.Drain()
		stats, err := engine.Records().Stats()
		require.NoError(t, err)
		require.Len(t, stats.Waiting, 2)
		for i, what := range []string{"device memory", "host memory"} {
			require.Equal(t, what, stats.Waiting[i].What)
			require.Equal(t, 1, stats.Waiting[i].Count)
			require.Contains(t, stats.Waiting[i].Why, "refused: cuMem")
		}
		require.EqualValues(t, 2*mib, stats.Waiting[1].Bytes)
	}
	failpoint.Set(nil)
	require.NoError(t, pause(engine, nothing)) // of nothing
	engine.Drain()
	stats, err := engine.Records().Stats()
	require.NoError(t, err)
	require.Empty(t, stats.Waiting)
}

// The totals of pauses and resumes never decrease: not when their tag goes, nor when the device is reset.
func TestStatsCount(t *testing.T) {
	_, _, engine := simulated(t, 2)
	totals := func() (found [4]stats.Total) {
		all, err := engine.Records().Stats()
		require.NoError(t, err)
		for _, d := range all.Devices {
			found[2*d.Device], found[2*d.Device+1] = d.Pauses, d.Resumes
		}
		for i := range found {
			require.Equal(t, found[i].Count > 0, found[i].Seconds > 0)
			found[i].Seconds = 0
		}
		return found
	}
	kept := malloc(t, engine, vmm.Request{Size: 3 * mib, Tag: "kept", Backup: vmm.BackupHost})
	lost := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "lost"})
	malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "lost", Device: 1})
	require.Equal(t, [4]stats.Total{}, totals())
	require.NoError(t, pause(engine, nothing))
	one, both := stats.Total{Count: 1, Bytes: 2 * mib}, stats.Total{Count: 1, Bytes: 6 * mib, ContentsBytes: 4 * mib}
	require.Equal(t, [4]stats.Total{both, {}, one, {}}, totals())
	require.NoError(t, pause(engine, nothing))
	require.Equal(t, [4]stats.Total{both, {}, one, {}}, totals(), "there was nothing left to pause")
	failpoint.Set(func(call string) error {
		if call == "cuMemCreate" {
			return cuda.OutOfMemory
		}
		return nil
	})
	require.Error(t, resume(engine, nothing))
	failpoint.Set(nil)
	require.Equal(t, [4]stats.Total{both, {}, one, {}}, totals(), "a resume that fails has moved nothing")
	require.NoError(t, resume(engine, nothing))
	require.Equal(t, [4]stats.Total{both, both, one, one}, totals())

	require.NoError(t, engine.Free(kept, false))
	require.NoError(t, engine.Free(lost, false))
	require.Equal(t, [4]stats.Total{both, both, one, one}, totals())
	engine.Reset(0)
	malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "lost"})
	require.NoError(t, pause(engine, nothing))
	twice := stats.Total{Count: 2, Bytes: 8 * mib, ContentsBytes: 4 * mib}
	require.Equal(t, [4]stats.Total{twice, both, {Count: 2, Bytes: 4 * mib}, one}, totals())
}

// They also show a free that is still to be made, with what it waits for.
func TestStatsTellOfPendingFrees(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	waiting := func() []stats.Waiting {
		stats, err := engine.Records().Stats()
		require.NoError(t, err)
		return stats.Waiting
	}
	a := mallocs(t, engine, 2, vmm.Request{Size: 3 * mib, Tag: "t"})
	small := malloc(t, engine, vmm.Request{Size: 700, Tag: "t"})
	for _, address := range append(a, small) {
		require.NoError(t, engine.Free(address, true))
	}
	require.Equal(t, []stats.Waiting{{What: "free", Why: "a stream was being captured", Count: 3, Bytes: 6*mib + 700}},
		waiting())
	sim.Fail("cuMemUnmap", 1, 999)
	engine.FreeDeferred()
	require.Len(t, waiting(), 1)
	require.Equal(t, 1, waiting()[0].Count)
	require.Contains(t, waiting()[0].Why, "refused: cuMemUnmap")
	engine.FreeDeferred()
	require.Empty(t, waiting())
	require.Zero(t, sim.Stat("handles"))
}
