package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
)

// A sub-allocator learns whether what it has cached of a tag is paused, and since which pause.
func TestPausedBy(t *testing.T) {
	_, _, engine := simulated(t, 1)
	a := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "t"})
	malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "other"})
	require.Zero(t, engine.Records().PausedBy("t"))
	require.Zero(t, engine.Records().PausedBy("never"))
	require.NoError(t, pause(engine, vmm.Options{Tags: []string{"t"}}))
	first := engine.Records().PausedBy("t")
	require.NotZero(t, first)
	require.Zero(t, engine.Records().PausedBy("other"))

	require.NoError(t, pause(engine, vmm.Options{Tags: []string{"t"}}))
	require.Equal(t, first, engine.Records().PausedBy("t"), "nothing of it was paused again")
	b := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "t"})
	require.Equal(t, first, engine.Records().PausedBy("t"))
	require.NoError(t, pause(engine, vmm.Options{}))
	second := engine.Records().PausedBy("t")
	require.Greater(t, second, first)
	require.Equal(t, second, engine.Records().PausedBy("other"))

	require.NoError(t, resume(engine, vmm.Options{Tags: []string{"other"}}))
	require.Zero(t, engine.Records().PausedBy("other"))
	require.NoError(t, engine.Free(a, false))
	require.Equal(t, second, engine.Records().PausedBy("t"))
	require.NoError(t, engine.Free(b, false))
	require.Zero(t, engine.Records().PausedBy("t"), "all of it is freed")
}

// A pause tells its caller which tags it has taken memory of: not those that were paused before.
func TestAPauseTellsWhatItTook(t *testing.T) {
	_, _, engine := simulated(t, 1)
	for _, tag := range []string{"before", "half", "now"} {
		malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: tag})
	}
	require.NoError(t, pause(engine, vmm.Options{Tags: []string{"before", "half"}}))
	malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "half"})
	took := map[string]bool{}
	options := vmm.Options{Took: func(tag string) { took[tag] = true }}
	require.NoError(t, pause(engine, options))
	require.Equal(t, map[string]bool{"half": true, "now": true}, took)
	clear(took)
	require.NoError(t, pause(engine, options))
	require.Empty(t, took)
}
