package vmm_test

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/machine/hostmemory"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// A Prepare that fails on one device keeps nothing for the others either, and can be made again.
func TestPrepareAllOrNothing(t *testing.T) {
	sim, _, engine := simulated(t, 2)
	for device := range 2 {
		malloc(t, engine, vmm.Request{Size: 4 * mib, Device: device, Tag: "t", Backup: vmm.BackupHost})
	}
	registered := 0
	defer at("cuMemHostRegister_v2", func() error {
		if registered++; registered == 2 {
			return cuda.OutOfMemory
		}
		return nil
	})()
	require.ErrorIs(t, engine.Prepare(nil)(), store.ErrHostMemory)
	engine.Drain()
	require.Equal(t, 2, registered)
	require.Zero(t, sim.Stat("registered_bytes"))
	require.NoError(t, engine.Prepare(nil)())
	require.NotZero(t, sim.Stat("registered_bytes"))
}

// Memory that is freed and reused for something larger while Prepare pins does not count as prepared.
func TestPrepareBesideFrees(t *testing.T) {
	_, _, engine := simulated(t, 1)
	r := vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupHost}
	a := mallocs(t, engine, 3, r)
	require.NoError(t, engine.Free(a[1], false)) // it is to be made last: its place in host memory comes last then
	require.Equal(t, a[1], malloc(t, engine, r))
	cycle(t, engine, shared("t")) // into one extent
	var larger uintptr
	end := at("cuMemHostRegister_v2", func() error {
		if larger == 0 {
			larger = 1
			frees(t, engine, a[0], a[1])
			r.Size = 4 * mib
			larger = malloc(t, engine, r)
		}
		return nil
	})
	defer end()
	require.NoError(t, engine.Prepare(nil)())
	require.Equal(t, a[0], larger, "it is the memory of both")
	end()
	fill(larger, 4*mib, 1)
	fill(a[2], 2*mib, 2)
	cycle(t, engine, shared("t"))
	requireFilled(t, larger, 4*mib, 1)
	requireFilled(t, a[2], 2*mib, 2)
}

// All devices share the host memory and save side by side: if it does not suffice for all together, the pause is
// refused before any of it is taken.
func TestHostMemoryOfAllDevices(t *testing.T) {
	available := hostmemory.Available("self", nil)
	if available == math.MaxUint64 {
		t.Skip("this machine does not say how much memory it has")
	}
	sim, _, engine := simulatedWith(t, 2, "16T")
	size := available / 4 * 3 &^ (2*mib - 1)
	var addresses []uintptr
	for device := range 2 {
		a := malloc(t, engine, vmm.Request{Size: size, Device: device, Tag: "t", Backup: vmm.BackupHost})
		fill(a, mib, uint64(device))
		addresses = append(addresses, a)
	}
	var taken atomic.Int64
	end := at("mmap", func() error {
		taken.Add(1)
		return unix.ENOMEM // rather than have the kernel end the test
	})
	defer end()
	err := pause(engine, name("t"))
	require.Zero(t, taken.Load())
	var short *store.Shortage
	require.True(t, errors.As(err, &short), "%v", err)
	require.ErrorIs(t, err, store.ErrHostMemory)
	require.Equal(t, 2*size, short.Needed)
	require.Less(t, short.Available, short.Needed)
	require.Zero(t, sim.Stat("registered_bytes"))
	for device, a := range addresses {
		require.False(t, engine.PausedAt(a))
		requireFilled(t, a, mib, uint64(device))
	}
	end()
	require.NoError(t, engine.Free(addresses[1], false))
	require.NoError(t, pause(engine, vmm.Options{Discard: true}))
}
