package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
)

// Where a device's memory is the host's, contents that were to wait in host memory go to files, and the user is told so
// once. Only files give back what a pause frees.
func TestADeviceWithoutMemoryOfItsOwn(t *testing.T) {
	t.Setenv("CUDASIM_INTEGRATED", "1")
	_, driver, engine := simulated(t, 1)
	require.True(t, driver.SharesHostMemory(0))
	var told []string
	vmm.HostOf(engine).SetWarn(func(line string) { told = append(told, line) })
	for _, backup := range []vmm.BackupKind{vmm.BackupHost, vmm.BackupSparse} {
		a := malloc(t, engine, vmm.Request{Size: 4 * mib, Tag: "a", Backup: backup, Incremental: true})
		fill(a, 4*mib, 7)
		options := vmm.Options{DiskDir: t.TempDir()}
		for range 2 {
			require.NoError(t, pause(engine, options))
			stats, err := engine.Records().Stats()
			require.NoError(t, err)
			require.Equal(t, uint64(4*mib), stats.Devices[0].Tags[0].DiskBytes)
			require.Zero(t, stats.Devices[0].Tags[0].HostBytes)
			require.NoError(t, resume(engine, options))
			requireFilled(t, a, 4*mib, 7)
		}
		frees(t, engine, a)
	}
	require.Equal(t, []string{"device 0 has no memory of its own: contents in host memory would free nothing, so a pause " +
		"saves them to files (TMS_DISK_BACKUP_DIR)"}, told)
}
