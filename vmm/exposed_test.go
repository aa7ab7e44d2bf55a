package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/cuda"
)

// Memory is exposed while a pause keeps it that no gate holds the program from, however that ends.
func TestExposed(t *testing.T) {
	_, _, e := simulated(t, 1)
	e.CheckInvariants(true)
	var told []bool
	vmm.HostOf(e).SetExposed(func(exposed bool) { told = append(told, exposed) })
	exposed := func(address uintptr, tag string) {
		t.Helper()
		name, ok := e.Exposed(address)
		require.Equal(t, tag, name)
		require.Equal(t, tag != "", ok)
	}
	one := malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "one"})
	other := malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "other"})
	require.NoError(t, pause(e, vmm.Options{Tags: []string{"one"}}))
	exposed(one, "one")
	exposed(one+2*mib-1, "one")
	exposed(other, "")
	require.NoError(t, pause(e, vmm.Options{Gated: true}))
	exposed(one, "one")
	exposed(other, "")
	require.NoError(t, resume(e, vmm.Options{}))
	exposed(one, "")
	require.Equal(t, []bool{true, false}, told)

	require.NoError(t, pause(e, vmm.Options{}))
	frees(t, e, one)
	exposed(other, "other")
	frees(t, e, other)
	exposed(other, "")
	one = malloc(t, e, vmm.Request{Size: 2 * mib, Tag: "one"})
	exposed(one, "")
	require.NoError(t, pause(e, vmm.Options{}))
	e.Reset(0)
	require.Equal(t, []bool{true, false, true, false, true, false}, told)
}

// What a resume in an order has yet to bring back stays exposed, also where a step fails: a thread that was let in may
// still name its addresses.
func TestExposedInAnOrder(t *testing.T) {
	sim, _, e := simulated(t, 1)
	e.CheckInvariants(true)
	r := vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupHost}
	first, last := malloc(t, e, r), malloc(t, e, r)
	require.NoError(t, pause(e, vmm.Options{}))
	_, err := e.Resume(vmm.Options{Order: &vmm.Order{
		Ranges: []vmm.OrderedRange{{Address: last, Size: 2 * mib, Step: 1}},
		Ended:  func(err error) { require.ErrorIs(t, err, cuda.Unknown) },
		Back: func(int, uint64) {
			_, exposed := e.Exposed(last)
			require.True(t, exposed, "on its way")
			sim.Fail("cuMemMap", 1, 999)
		},
	}})
	require.Error(t, err)
	_, exposed := e.Exposed(last)
	require.True(t, exposed, "after the failure")
	require.NoError(t, resume(e, vmm.Options{}))
	_, exposed = e.Exposed(last)
	require.False(t, exposed)
	frees(t, e, first, last)
}
