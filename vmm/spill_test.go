package vmm_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
	"tms/internal/aid/hermetic"
	"tms/vmm"
)

// kept returns what the tag "t" has in host memory, and what in files.
func kept(t *testing.T, e *vmm.Engine) (hostAndDisk [2]uint64) {
	t.Helper()
	stats, err := e.Records().Stats()
	require.NoError(t, err)
	for _, d := range stats.Devices {
		for _, tag := range d.Tags {
			require.Equal(t, "t", tag.Tag)
			hostAndDisk[0] += tag.HostBytes
			hostAndDisk[1] += tag.DiskBytes
			require.LessOrEqual(t, tag.HostBytes+tag.DiskBytes, tag.BackupBytes)
		}
	}
	return hostAndDisk
}

func TestPausedContentsMoveToDiskAndBack(t *testing.T) {
	sim, _, engine := simulated(t, 2)
	var addresses []uintptr
	sizes := []uint64{2 * mib, 300, 20 * mib, 4 * mib}
	for i, size := range sizes {
		a := malloc(t, engine, vmm.Request{Size: size, Device: i % 2, Tag: "t", Backup: vmm.BackupHost})
		fill(a, int(size), uint64(i))
		addresses = append(addresses, a)
	}
	filed := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupDisk})
	fill(filed, 2*mib, 99)
	o := name("t")
	o.DiskDir = t.TempDir()
	move := func(to vmm.BackupKind, want uint64) {
		t.Helper()
		bytes, err := engine.Move(o, to)
		require.NoError(t, err)
		require.Equal(t, want, bytes)
	}
	move(vmm.BackupDisk, 0) // nothing is paused
	for range 2 {
		require.NoError(t, pause(engine, o))
		handles, registered := sim.Stat("handles"), sim.Stat("registered_bytes")
		require.Positive(t, registered)
		for range 2 {
			move(vmm.BackupDisk, 28*mib)
			move(vmm.BackupDisk, 0)
			require.Equal(t, [2]uint64{0, 30 * mib}, kept(t, engine))
			require.Zero(t, sim.Stat("registered_bytes"), "host memory is back when it returns")
			move(vmm.BackupHost, 28*mib)
			move(vmm.BackupHost, 0)
			require.Equal(t, [2]uint64{28 * mib, 2 * mib}, kept(t, engine), "what is to be on disk stays there")
			require.Equal(t, registered, sim.Stat("registered_bytes"))
			require.Equal(t, handles, sim.Stat("handles"), "all stays paused")
		}
		move(vmm.BackupDisk, 28*mib)
		require.NoError(t, resume(engine, o), "from there, too")
		for i, a := range addresses {
			requireFilled(t, a, int(sizes[i]), uint64(i))
		}
		requireFilled(t, filed, 2*mib, 99)
		engine.Drain() // files go in the background
		require.Zero(t, openIn(t, o.DiskDir))
	}
}

// Contents that have no host memory yet go to files without taking any, except for staging.
func TestAPauseToDisk(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	defer failpoint.Set(nil)
	const size = 72 * mib // all of it more than the staging buffers
	addresses := mallocs(t, engine, 3, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	addresses = append(addresses,
		malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost, Incremental: true}))
	for i, a := range addresses {
		fill(a, size, uint64(i))
	}
	o := name("t")
	o.DiskDir, o.ToDisk = t.TempDir(), true
	for range 2 {
		var most atomic.Uint64
		end := at("pwrite", func() error {
			for now := sim.Stat("registered_bytes"); now > most.Load(); {
				most.Store(now)
			}
			return nil
		})
		require.NoError(t, pause(engine, o))
		end()
		require.Positive(t, most.Load())
		require.Less(t, most.Load(), uint64(4*size))
		require.Equal(t, [2]uint64{0, 4 * size}, kept(t, engine))
		require.Zero(t, withoutContents(t, engine)[0][0])
		require.NoError(t, resume(engine, o))
		requireAll(t, addresses, size)
	}
	// Contents that already have host memory are saved there.
	require.NoError(t, engine.Prepare(o.Tags)())
	require.NoError(t, pause(engine, o))
	require.Equal(t, [2]uint64{4 * size, 0}, kept(t, engine))
	require.NoError(t, resume(engine, o))
	requireAll(t, addresses, size)
}

func TestAMoveThatFailsChangesNothing(t *testing.T) {
	_, _, engine := simulated(t, 1)
	defer failpoint.Set(nil)
	addresses := filled(t, engine, 3, vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
	o := name("t")
	o.DiskDir = t.TempDir()
	require.NoError(t, pause(engine, o))
	failing := func(call string, nth int64, to vmm.BackupKind) {
		t.Helper()
		var calls atomic.Int64
		end := at(call, func() error {
			if calls.Add(1) == nth {
				return unix.EIO
			}
			return nil
		})
		before := kept(t, engine)
		_, err := engine.Move(o, to)
		end()
		require.Error(t, err, call)
		require.Equal(t, before, kept(t, engine))
	}
	for _, call := range []string{"open", "fallocate"} {
		failing(call, 1, vmm.BackupDisk)
	}
	failing("pwrite", 3, vmm.BackupDisk)
	engine.Drain()
	require.Zero(t, openIn(t, o.DiskDir))
	_, err := engine.Move(o, vmm.BackupDisk)
	require.NoError(t, err)
	failing("pread", 2, vmm.BackupHost)
	_, err = engine.Move(o, vmm.BackupHost)
	require.NoError(t, err)
	require.NoError(t, resume(engine, o))
	requireAll(t, addresses, 4*mib)
}

// Frees and queries during a move wait or go on; nothing of the others is lost.
func TestMovesBesideFrees(t *testing.T) {
	_, _, engine := simulated(t, 1)
	o := name("t")
	o.DiskDir = t.TempDir()
	for range hermetic.Often(10, 4) {
		addresses := filled(t, engine, 16, vmm.Request{Size: mib + 1, Tag: "t", Backup: vmm.BackupHost})
		require.NoError(t, pause(engine, o))
		var all sync.WaitGroup
		for _, to := range []vmm.BackupKind{vmm.BackupDisk, vmm.BackupHost} {
			all.Go(func() {
				_, err := engine.Move(o, to)
				require.NoError(t, err)
			})
		}
		all.Go(func() {
			frees(t, engine, addresses[:8]...)
		})
		all.Go(func() {
			_, err := engine.Records().Stats()
			require.NoError(t, err)
		})
		all.Wait()
		require.NoError(t, resume(engine, o))
		for i, a := range addresses[8:] {
			requireFilled(t, a, mib+1, uint64(8+i))
			require.NoError(t, engine.Free(a, false))
		}
	}
}
