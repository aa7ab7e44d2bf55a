package vmm_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// noting notes the numbers of what it holds.
type noting struct {
	descriptors.Holder
	numbers []uint64
}

func (n *noting) Keep(descriptor int) (number uint64, err error) {
	number, err = n.Holder.Keep(descriptor)
	n.numbers = append(n.numbers, number)
	return number, err
}

// besideAnother makes an engine whose contents can wait on the second of two devices, held by descriptors.
func besideAnother(t *testing.T) (*cudasim.Sim, *cuda.Driver, *vmm.Engine, *noting) {
	t.Helper()
	t.Setenv("CUDASIM_SHARED", fmt.Sprintf("%s-%d", t.Name(), os.Getpid()))
	sim, driver, engine := simulated(t, 2)
	held := &noting{}
	engine.UseDescriptors(held)
	return sim, driver, engine, held
}

// toTheOther returns the options of a pause and resume of the tag "t", whose contents wait on the other device.
func toTheOther(t *testing.T, engine *vmm.Engine) vmm.Options {
	t.Helper()
	now, err := engine.Records().Stats()
	require.NoError(t, err)
	o := name("t")
	o.Toward = stats.Destinations{now.Devices[0].UUID: {Device: now.Devices[0].Peers[0], Room: 1 << 30}}
	return o
}

// requireAllBack checks that memory has its contents, and that nothing is left where they waited.
func requireAllBack(t *testing.T, sim *cudasim.Sim, engine *vmm.Engine, held *noting, all []uintptr, size int) {
	t.Helper()
	engine.Drain()
	require.Zero(t, sim.Stat("used:1"))
	require.Zero(t, held.Count())
	for i, a := range all {
		requireFilled(t, a, size, uint64(i))
	}
}

// Before a move, contents for which there is room wait at the destination, with nothing mapped and no handle there.
func TestContentsWaitWhereTheyGo(t *testing.T) {
	sim, _, engine, held := besideAnother(t)
	const size = 8 * mib
	var all []uintptr
	for i, r := range []vmm.Request{{Backup: vmm.BackupHost}, {Backup: vmm.BackupHost, Incremental: true},
		{Backup: vmm.BackupPeer, Target: -1}, {Backup: vmm.BackupDisk}, {Backup: vmm.BackupSparse}} {
		r.Size, r.Tag = size, "t"
		a := malloc(t, engine, r)
		fill(a, size, uint64(i))
		all = append(all, a)
	}
	before, err := engine.Records().Stats()
	require.NoError(t, err)
	own, peers := before.Devices[0].UUID, before.Devices[0].Peers
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
		requireAllBack(t, sim, engine, held, all, size)
	}
}

// Where contents return in turn and memory then runs out, what is back stays, and the rest stays paused.
func TestSomeContentsAreBack(t *testing.T) {
	sim, driver, engine, held := besideAnother(t)
	const size, count = 8 * mib, 6
	var all []uintptr
	for i := range uint64(count) {
		kind := []vmm.BackupKind{vmm.BackupHost, vmm.BackupSparse}[i%2]
		all = append(all, malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: kind}))
		fill(all[i], size-2*mib, i)
		clear(bytesAt(all[i]+size-2*mib, 2*mib))
	}
	o := toTheOther(t, engine)
	require.NoError(t, pause(engine, o))
	hog, err := driver.MemCreate(sim.Stat("free:0")-2*size, 0) // room for two
	require.NoError(t, err)
	require.ErrorIs(t, resume(engine, o), cuda.OutOfMemory)
	now, err := engine.Records().Stats()
	require.NoError(t, err)
	require.EqualValues(t, 2*size, now.Devices[0].Tags[0].PhysicalBytes)
	require.EqualValues(t, (count-2)*size, now.Devices[0].Tags[0].PausedBytes)
	require.NoError(t, driver.MemRelease(hog))
	require.NoError(t, resume(engine, o))
	requireAllBack(t, sim, engine, held, all, size-2*mib)
	for _, a := range all {
		require.Equal(t, make([]byte, 2*mib), bytesAt(a+size-2*mib, 2*mib))
	}
}

// The same while the rest of the memory was to come: its wait has ended the copies of what is back.
func TestSomeContentsAreBackAhead(t *testing.T) {
	sim, driver, engine, held := besideAnother(t)
	const size, count = 8 * mib, 6
	all := filled(t, engine, count, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	o := toTheOther(t, engine)
	require.NoError(t, pause(engine, o))
	hog, err := driver.MemCreate(sim.Stat("free:0")-2*size, 0) // room for two
	require.NoError(t, err)
	coming, done := make(chan struct{}), make(chan error, 1)
	ahead := o
	ahead.Coming = &vmm.Coming{All: coming}
	go func() { done <- resume(engine, ahead) }()
	require.Eventually(t, func() bool { return sim.Stat("free:0") == 0 }, time.Minute, time.Millisecond)
	looks := sim.Stat("calls:cuMemGetInfo_v2")
	require.Eventually(t, func() bool { return sim.Stat("calls:cuMemGetInfo_v2") > looks+2 }, time.Minute, time.Millisecond)
	close(coming)
	require.ErrorIs(t, <-done, cuda.OutOfMemory)
	require.NoError(t, driver.MemRelease(hog))
	require.NoError(t, resume(engine, o))
	requireAllBack(t, sim, engine, held, all, size)
}

// Contents that return in turn are verified before their only copy goes: what is wrong stays paused with that copy, and
// what is right can come back once the copy is mended.
func TestVerifiedInTurn(t *testing.T) {
	sim, driver, engine, held := besideAnother(t)
	const size, count, word = 8 * mib, 6, "damaged!"
	all := filled(t, engine, count, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	o := toTheOther(t, engine)
	o.Verify = true
	require.NoError(t, pause(engine, o))
	hog, err := driver.MemCreate(sim.Stat("free:0")-3*size, 0) // room for three
	require.NoError(t, err)
	whole := map[uint64][]byte{} // by number
	for _, number := range held.numbers {
		whole[number] = make([]byte, len(word))
		require.NoError(t, held.Use(number, func(descriptor int) error {
			_, err := unix.Pread(descriptor, whole[number], 4096)
			require.NoError(t, err)
			_, err = unix.Pwrite(descriptor, []byte(word), 4096)
			return err
		}))
	}
	require.ErrorIs(t, resume(engine, o), vmm.ErrContents)
	require.NoError(t, driver.MemRelease(hog))
	require.ErrorIs(t, resume(engine, o), vmm.ErrContents)
	for number, text := range whole {
		_ = held.Use(number, func(descriptor int) error { // unless its contents are back
			_, err := unix.Pwrite(descriptor, text, 4096)
			return err
		})
	}
	require.NoError(t, resume(engine, o))
	requireAllBack(t, sim, engine, held, all, size)
}
