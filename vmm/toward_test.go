package vmm_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
	"tms/vmm/stats"
)

// Before a move, contents for which there is room wait at the destination, with nothing mapped and no handle there.
func TestContentsWaitWhereTheyGo(t *testing.T) {
	t.Setenv("CUDASIM_SHARED", fmt.Sprint("toward-", os.Getpid()))
	sim, _, engine := simulated(t, 2)
	const size = 8 * mib
	var all []uintptr
	for i, r := range []vmm.Request{{Backup: vmm.BackupHost}, {Backup: vmm.BackupHost, Incremental: true},
		{Backup: vmm.BackupPeer, Target: -1}, {Backup: vmm.BackupDisk}, {Backup: vmm.BackupSparse}} {
		r.Size, r.Tag = size, "t"
		a := malloc(t, engine, r)
		fill(a, size, uint64(i))
		all = append(all, a)
	}
	held, err := engine.Stats()
	require.NoError(t, err)
	own, peers := held.Devices[0].UUID, held.Devices[0].Peers
	require.Len(t, peers, 1)
	for _, c := range []struct {
		to    string
		room  uint64
		there uint64 // expected
	}{{peers[0], 1 << 30, 3 * size}, {peers[0], 2*size + size/2, 2 * size}, {peers[0], 0, 0},
		{own, 1 << 30, size}, {"GPU-none", 1 << 30, size}} {
		o := name("t")
		o.DiskDir, o.Verify = t.TempDir(), true
		o.Toward = stats.Destinations{own: {Device: c.to, Room: c.room}}
		require.NoError(t, pause(engine, o))
		engine.Drain()
		require.EqualValues(t, c.there, sim.Stat("used:1"))
		if c.to == peers[0] { // else a peer's contents are as ever
			require.Zero(t, sim.Stat("handles"))
			require.Zero(t, sim.Stat("mappings"))
		}
		require.NoError(t, resume(engine, o))
		engine.Drain()
		require.Zero(t, sim.Stat("used:1"))
		for i, a := range all {
			requireFilled(t, a, size, uint64(i))
		}
	}
}
