package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/failpoint"
	"tms/vmm"
	"tms/vmm/backup"
	"tms/vmm/cuda"
)

// A Prepare that fails on one device keeps nothing for the others either, and can be made again.
func TestPrepareAllOrNothing(t *testing.T) {
	sim, _, engine := simulated(t, 2)
	var addresses []uintptr
	for device := range 2 {
		address, err := engine.Malloc(vmm.Request{Size: 4 * mib, Device: device, Tag: "t", Backup: vmm.BackupHost})
		require.NoError(t, err)
		addresses = append(addresses, address)
	}
	registered := 0
	failpoint.Set(func(call string) error {
		if call == "cuMemHostRegister_v2" {
			if registered++; registered == 2 {
				return cuda.OutOfMemory
			}
		}
		return nil
	})
	defer failpoint.Set(nil)
	require.ErrorIs(t, engine.Prepare(nil)(), backup.ErrHostMemory)
	engine.Drain()
	require.Equal(t, 2, registered)
	require.Zero(t, sim.Stat("registered_bytes"))
	require.NoError(t, engine.Prepare(nil)())
	require.NotZero(t, sim.Stat("registered_bytes"))
	for _, a := range addresses {
		require.NoError(t, engine.Free(a, false))
	}
}
