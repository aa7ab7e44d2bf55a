package vmm_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/internal/aid/guard"
	"tms/vmm"
)

// A defect in anything that is called while the engine's lock is released becomes an error of the operation, and the
// lock is as it should be: everything works afterwards, with contents.
func TestPanicsWithoutTheLock(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, driver, engine := simulated(t, 2)
	vmm.HostOf(engine).SetWarn(func(string) {})
	defer failpoint.Set(nil)
	kept := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
	fill(kept, 4*mib, 1)
	m := newMapper(t, driver, engine, vmm.Request{Tag: "t", Backup: vmm.BackupHost})
	handle := m.create(0)
	m.open(0, 1)

	panics := func(call string, operation func() error) {
		t.Helper()
		end := at(call, func() error { panic(call) })
		err := operation()
		end()
		var panicked *guard.Panic
		require.ErrorAs(t, err, &panicked, call)
		require.Equal(t, call, panicked.Value)
	}
	for _, call := range []string{"cuMemCreate", "cuMemMap", "cuMemSetAccess"} {
		panics(call, func() error {
			_, err := engine.Malloc(vmm.Request{Size: 4 * mib, Tag: "t"})
			return err
		})
	}
	panics("cuMemUnmap", func() error { return engine.Free(kept, false) })
	_, err := driver.DevicePrimaryCtxRetain(1) // it comes into use
	require.NoError(t, err)
	panics("cuMemSetAccess", engine.Grant)
	panics("cuMemSetAccess", func() error { return engine.UserMapped().SetAccess(m.at(0), chunk, onDevice0) })
	panics("cuMemUnmap", func() error { return engine.UserMapped().Unmap(m.at(0), chunk) })
	panics("cuMemUnmap", func() error { return pause(engine, name("t")) })
	require.NoError(t, pause(engine, name("t")))
	panics("cuMemCreate", func() error { return resume(engine, name("t")) })
	require.NoError(t, resume(engine, name("t")))
	requireFilled(t, kept, 4*mib, 1)

	m.unmap(0, 1, handle)
	m.end()
	require.ErrorIs(t, engine.UserMapped().SetAccess(kept, 4*mib, nil), vmm.ErrNotOurs)
	require.NoError(t, engine.Free(kept, false))
	// What an allocation had when it ended in this way is given back.
	require.NoError(t, pause(engine, vmm.Options{}))
}
