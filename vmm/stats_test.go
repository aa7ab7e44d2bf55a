package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/failpoint"
	"tms/vmm"
	"tms/vmm/cuda"
)

// No two names look the same, and nearly all look as they are.
func TestTagText(t *testing.T) {
	shown := map[string]string{
		"weights": "weights", "größe 重み": "größe 重み", "�": "�", `C:\tags`: `C:\tags`,
		"\xff": `\xff`, "\xfe": `\xfe`, `\xff`: `\\xff`, `\\xff`: `\\\\xff`, "\\\xff": `\\\xff`,
		"a\xc3": `a\xc3`, "\xed\xa0\x80": `\xed\xa0\x80`,
	}
	seen := map[string]bool{}
	for name, want := range shown {
		require.Equal(t, want, vmm.TagText(name))
		require.False(t, seen[want], "%q looks like another", name)
		seen[want] = true
	}
}

// What the driver refuses to take back is told of until it has it.
func TestStatsTellWhatIsRefused(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := mallocs(t, engine, 1, vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupHost})[0]
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
		stats, err := engine.Stats()
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
	stats, err := engine.Stats()
	require.NoError(t, err)
	require.Empty(t, stats.Waiting)
}
