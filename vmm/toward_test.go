package vmm_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/vmm"
	"tms/vmm/stats"
)

// Before a move, contents for which there is room wait at the destination, with nothing mapped and no handle there.
func TestContentsWaitWhereTheyGo(t *testing.T) {
	t.Setenv("CUDASIM_SHARED", fmt.Sprint("toward-", os.Getpid()))
	sim, _, engine := simulated(t, 2)
	kept := &descriptors{of: map[uint64]int{}}
	engine.Descriptors(kept)
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
	}{{peers[0], 1 << 30, 4 * size}, {peers[0], 3*size + size/2, 3 * size}, {peers[0], 0, 0},
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
		require.Empty(t, kept.of)
		for i, a := range all {
			requireFilled(t, a, size, uint64(i))
		}
	}
}

// descriptors is a peer.Descriptors.
type descriptors struct {
	sync.Mutex
	of   map[uint64]int
	full bool
}

func (d *descriptors) Keep(descriptor int) (number uint64, err error) {
	d.Lock()
	defer d.Unlock()
	if d.full {
		return 0, unix.EMFILE
	}
	number = max(1, rand.Uint64())
	d.of[number], err = unix.Dup(descriptor)
	return number, err
}

func (d *descriptors) Copy(number uint64) (int, error) {
	d.Lock()
	defer d.Unlock()
	return unix.Dup(d.of[number])
}

func (d *descriptors) Drop(number uint64) error {
	d.Lock()
	defer d.Unlock()
	defer delete(d.of, number)
	return unix.Close(d.of[number])
}
