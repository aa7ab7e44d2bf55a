package vmm_test

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/failpoint"
	"tms/vmm"
)

// kept returns what the tag "t" has in host memory, and what in files.
func kept(t *testing.T, e *vmm.Engine) (host, disk uint64) {
	t.Helper()
	stats, err := e.Stats()
	require.NoError(t, err)
	for _, d := range stats.Devices {
		for _, tag := range d.Tags {
			require.Equal(t, "t", tag.Tag)
			host, disk = host+tag.HostBytes, disk+tag.DiskBytes
			require.LessOrEqual(t, tag.HostBytes+tag.DiskBytes, tag.BackupBytes)
		}
	}
	return host, disk
}

func TestPausedContentsMoveToDiskAndBack(t *testing.T) {
	sim, _, engine := simulated(t, 2)
	var addresses []uintptr
	sizes := []uint64{2 * mib, 300, 20 * mib, 4 * mib}
	for i, size := range sizes {
		a, err := engine.Malloc(vmm.Request{Size: size, Device: i % 2, Tag: "t", Backup: vmm.BackupHost})
		require.NoError(t, err)
		fill(a, int(size), uint64(i))
		addresses = append(addresses, a)
	}
	filed, err := engine.Malloc(vmm.Request{Size: 2 * mib, Tag: "t", Backup: vmm.BackupDisk})
	require.NoError(t, err)
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
			host, files := kept(t, engine)
			require.Equal(t, [2]uint64{0, 30 * mib}, [2]uint64{host, files})
			require.Zero(t, sim.Stat("registered_bytes"), "host memory is back when it returns")
			move(vmm.BackupHost, 28*mib)
			move(vmm.BackupHost, 0)
			host, files = kept(t, engine)
			require.Equal(t, [2]uint64{28 * mib, 2 * mib}, [2]uint64{host, files}, "what is to be on disk stays there")
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
		files, err := filepath.Glob(filepath.Join(o.DiskDir, "*"))
		require.NoError(t, err)
		require.Empty(t, files)
	}
	for _, a := range append(addresses, filed) {
		require.NoError(t, engine.Free(a, false))
	}
}

// Contents that have no host memory yet go to files without taking any, except for staging.
func TestAPauseToDisk(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	defer failpoint.Set(nil)
	var addresses []uintptr
	const size = 96 * mib // all of it more than the staging buffers
	for i := range 4 {
		a, err := engine.Malloc(vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost, Incremental: i == 3})
		require.NoError(t, err)
		fill(a, size, uint64(i))
		addresses = append(addresses, a)
	}
	o := name("t")
	o.DiskDir, o.ToDisk = t.TempDir(), true
	for range 2 {
		var most atomic.Uint64
		failpoint.Set(func(call string) error {
			if call == "pwrite" {
				for now := sim.Stat("registered_bytes"); now > most.Load(); {
					most.Store(now)
				}
			}
			return nil
		})
		require.NoError(t, pause(engine, o))
		failpoint.Set(nil)
		require.Positive(t, most.Load())
		require.Less(t, most.Load(), uint64(4*size))
		host, files := kept(t, engine)
		require.Equal(t, [2]uint64{0, 4 * size}, [2]uint64{host, files})
		require.Zero(t, withoutContents(t, engine)[0][0])
		require.NoError(t, resume(engine, o))
		for i, a := range addresses {
			requireFilled(t, a, size, uint64(i))
		}
	}
	// Contents that already have host memory are saved there.
	require.NoError(t, engine.Prepare(o.Tags)())
	require.NoError(t, pause(engine, o))
	host, files := kept(t, engine)
	require.Equal(t, [2]uint64{4 * size, 0}, [2]uint64{host, files})
	require.NoError(t, resume(engine, o))
	for i, a := range addresses {
		requireFilled(t, a, size, uint64(i))
		require.NoError(t, engine.Free(a, false))
	}
}

func TestAMoveThatFailsChangesNothing(t *testing.T) {
	_, _, engine := simulated(t, 1)
	defer failpoint.Set(nil)
	var addresses []uintptr
	for i := range 3 {
		a, err := engine.Malloc(vmm.Request{Size: 4 * mib, Tag: "t", Backup: vmm.BackupHost})
		require.NoError(t, err)
		fill(a, 4*mib, uint64(i))
		addresses = append(addresses, a)
	}
	o := name("t")
	o.DiskDir = t.TempDir()
	require.NoError(t, pause(engine, o))
	failing := func(call string, at int, to vmm.BackupKind) {
		t.Helper()
		var mu sync.Mutex
		failpoint.Set(func(name string) error {
			mu.Lock()
			defer mu.Unlock()
			if name == call {
				if at--; at == 0 {
					return unix.EIO
				}
			}
			return nil
		})
		before := [2]uint64{}
		before[0], before[1] = kept(t, engine)
		_, err := engine.Move(o, to)
		failpoint.Set(nil)
		require.Error(t, err, call)
		host, files := kept(t, engine)
		require.Equal(t, before, [2]uint64{host, files})
	}
	for _, call := range []string{"open", "fallocate", "pwrite"} {
		failing(call, 3, vmm.BackupDisk)
	}
	engine.Drain()
	found, err := os.ReadDir(o.DiskDir)
	require.NoError(t, err)
	require.Empty(t, found)
	_, err = engine.Move(o, vmm.BackupDisk)
	require.NoError(t, err)
	failing("pread", 2, vmm.BackupHost)
	_, err = engine.Move(o, vmm.BackupHost)
	require.NoError(t, err)
	_, err = engine.Move(o, vmm.BackupPeer)
	require.ErrorContains(t, err, "host memory or to disk")
	require.NoError(t, resume(engine, o))
	for i, a := range addresses {
		requireFilled(t, a, 4*mib, uint64(i))
		require.NoError(t, engine.Free(a, false))
	}
}

// Frees and queries during a move wait or go on; nothing of the others is lost.
func TestMovesBesideFrees(t *testing.T) {
	_, _, engine := simulated(t, 1)
	o := name("t")
	o.DiskDir = t.TempDir()
	for range 10 {
		var addresses []uintptr
		for i := range 16 {
			a, err := engine.Malloc(vmm.Request{Size: mib + 1, Tag: "t", Backup: vmm.BackupHost})
			require.NoError(t, err)
			fill(a, mib, uint64(i))
			addresses = append(addresses, a)
		}
		require.NoError(t, pause(engine, o))
		var all sync.WaitGroup
		for _, to := range []vmm.BackupKind{vmm.BackupDisk, vmm.BackupHost} {
			all.Go(func() {
				_, err := engine.Move(o, to)
				require.NoError(t, err)
			})
		}
		all.Go(func() {
			for _, a := range addresses[:8] {
				require.NoError(t, engine.Free(a, false))
			}
		})
		all.Go(func() {
			_, err := engine.Stats()
			require.NoError(t, err)
		})
		all.Wait()
		require.NoError(t, resume(engine, o))
		for i, a := range addresses[8:] {
			requireFilled(t, a, mib, uint64(8+i))
			require.NoError(t, engine.Free(a, false))
		}
	}
}
