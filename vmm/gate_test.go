package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
)

// A gated pause is over when nothing is left that it has paused, also if the driver kept the memory of an allocation
// that was freed during the pause, and that memory serves a later allocation.
func TestGatedSlack(t *testing.T) {
	sim, _, e := simulated(t, 1)
	e.CheckInvariants(true)
	var gated []bool
	vmm.HostOf(e).SetGated(func(now bool) { gated = append(gated, now) })
	r := vmm.Request{Size: 2 * mib, Tag: "t"}
	all := mallocs(t, e, 3, r)
	o := vmm.Options{ExtentBytes: 64 * mib}
	cycle(t, e, o) // one extent for the three
	sim.Fail("cuMemRelease", 1, 999)
	require.Error(t, pause(e, vmm.Options{Gated: true}))
	require.True(t, e.Records().Gated())
	frees(t, e, all[1])
	require.NoError(t, resume(e, o))
	require.False(t, e.Records().Gated())
	require.Equal(t, all[1], malloc(t, e, r), "the slack")
	frees(t, e, malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "other"}))
	require.False(t, e.Records().Gated())
	require.NoError(t, pause(e, vmm.Options{Gated: true}))
	require.NoError(t, resume(e, o))
	require.False(t, e.Records().Gated())
	require.Equal(t, []bool{true, false, true, false}, gated)
}
