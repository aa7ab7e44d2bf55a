package vmm_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// extents is a store.Reserve.
type extents struct {
	t *testing.T
	sync.Mutex
	free []int
	off  atomic.Bool // none is said to be free
	kept *descriptors.Holder
}

// serve has an engine use the extents, and a keeper of their descriptors.
func (x *extents) serve(engine *vmm.Engine, kept *descriptors.Holder) {
	x.kept = kept
	engine.UseDescriptors(kept)
	engine.UseReserved(x)
}

// newExtents makes count extents, which outlive simulators.
func newExtents(t *testing.T, count int) *extents {
	t.Helper()
	x := &extents{t: t}
	x.fill(count)
	t.Cleanup(func() {
		for _, descriptor := range x.free {
			require.NoError(t, unix.Close(descriptor))
		}
	})
	return x
}

// fill makes what is missing.
func (x *extents) fill(count int) {
	path, err := cudasim.Library()
	require.NoError(x.t, err)
	driver, err := cuda.Open(path)
	require.NoError(x.t, err)
	for len(x.free) < count {
		descriptor, err := driver.MemCreateFile(cuda.HostExtent, cuda.HostExtentOn(0))
		require.NoError(x.t, err)
		x.free = append(x.free, descriptor)
	}
}

func (x *extents) Free(int) uint64 {
	x.Lock()
	defer x.Unlock()
	if x.off.Load() {
		return 0
	}
	return uint64(len(x.free)) * cuda.HostExtent
}

func (x *extents) Take(int) (uint64, error) {
	x.Lock()
	defer x.Unlock()
	last := len(x.free) - 1
	if last < 0 {
		return 0, cuda.Refuse(cuda.OutOfMemory, "none is free")
	}
	descriptor := x.free[last]
	number, err := x.kept.Keep(descriptor)
	if err == nil {
		x.free = x.free[:last]
		err = unix.Close(descriptor)
	}
	return number, err
}

func (x *extents) Give(_ int, number uint64) error {
	x.Lock()
	defer x.Unlock()
	if descriptor, err := x.kept.Copy(number); err == nil {
		x.free = append(x.free, descriptor)
	}
	return x.kept.Drop(number)
}

// Wherever a pause, a resume or a look at contents in reserved memory fails, nothing is lost, and it comes back.
func TestSweepReserved(t *testing.T) {
	reserved := newExtents(t, 2)
	sweep(t, func(s *scene) {
		kept := &descriptors.Holder{}
		reserved.serve(s.engine, kept)
		for i := range 8 {
			r := kinds[i%4]
			r.Size, r.Tag = 20*kib*uint64(i+1), string(rune('a'+i%2))
			s.malloc(r)
			s.context, _ = s.driver.CtxGetCurrent()
		}
		s.pause("a")
		s.pause("")
		for _, p := range s.all {
			s.do("look at contents", func() error {
				_, err := s.engine.BackupPointer(p.address, p.request.Size, false)
				return err
			})
		}
		s.resume("a")
		s.pause("a")
		s.free(func(i int) bool { return i%3 == 1 })
		s.resume("")
		s.end()
		lost := 2 - len(reserved.free)
		if kept.Count() > 0 || lost > len(s.faults.list()) { // what cannot be imported is not passed on
			s.fail("%d descriptors are left over, and %d extents are lost", kept.Count(), lost)
		}
		reserved.fill(2)
	}, 50, fullSweep())
}

// Contents that cannot be kept by a descriptor wait in the process's own memory.
func TestNoDescriptorForReservedMemory(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	reserved, kept := newExtents(t, 1), &descriptors.Holder{}
	reserved.serve(engine, kept)
	const size = 4 * mib
	a := malloc(t, engine, vmm.Request{Size: size, Tag: "t", Backup: vmm.BackupHost})
	fill(a, size, 1)
	for _, full := range []bool{true, false} {
		if kept.Room = nil; full {
			kept.Room = func(int, int) error { return unix.EMFILE }
		}
		pins := sim.Stat("calls:cuMemHostRegister_v2")
		require.NoError(t, pause(engine, name("t")))
		require.Equal(t, full, sim.Stat("calls:cuMemHostRegister_v2") > pins)
		require.Equal(t, full, reserved.Free(0) > 0)
		require.EqualValues(t, size, engine.Records().Recorded().Devices[0].Tags[0].HostBytes)
		require.NoError(t, resume(engine, name("t")))
		requireFilled(t, a, size, 1)
		engine.Drain()
	}
}

// Two devices count on the same extent. One gets it, and no warning says so.
func TestTwoDevicesWantOneExtent(t *testing.T) {
	sim, _, engine := simulated(t, 2)
	reserved := newExtents(t, 1)
	reserved.serve(engine, &descriptors.Holder{})
	vmm.HostOf(engine).SetWarn(func(line string) { t.Error(line) })
	const size = 4 * mib
	var all []uintptr
	for device := range 2 {
		all = append(all, malloc(t, engine, vmm.Request{Size: size, Device: device, Tag: "t", Backup: vmm.BackupHost}))
		fill(all[device], size, uint64(device))
	}
	for range 3 {
		pins := sim.Stat("calls:cuMemHostRegister_v2")
		require.NoError(t, pause(engine, name("t")))
		require.Equal(t, pins+1, sim.Stat("calls:cuMemHostRegister_v2"))
		require.Zero(t, reserved.Free(0))
		require.NoError(t, resume(engine, name("t")))
		for device, a := range all {
			requireFilled(t, a, size, uint64(device))
		}
		engine.Drain()
		require.EqualValues(t, cuda.HostExtent, reserved.Free(0))
	}
}
