package vmm_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// Engines that have each other's memory mapped, as if each were another process (preload/ipc_test.go has processes).

// neighbour is an engine among others, by number.
type neighbour struct {
	self    int
	others  []*vmm.Engine
	deaf    atomic.Bool   // does not receive returns
	lost    atomic.Bool   // finds the memory of the others gone
	stopped chan struct{} // unless nil, the first does not answer until it is closed
}

func (n *neighbour) Fetch(share vmm.Share, number uint64) (vmm.Export, error) {
	if n.lost.Load() {
		return vmm.Export{}, vmm.ErrShareGone
	}
	if share.PID == 0 && n.stopped != nil {
		<-n.stopped
	}
	return n.others[share.PID].Shared().Export(share.ID, vmm.Importer{PID: n.self, Number: number})
}

func (n *neighbour) Return(share vmm.Share, number uint64) error {
	if n.deaf.Load() {
		return errors.New("not heard")
	}
	n.others[share.PID].Shared().Returned(share.ID, n.self, number)
	return nil
}

func (n *neighbour) Gone(vmm.Importer) bool { return false }

const shareSize = 64 * kib

// shareable is simulated with granules of shareSize.
func shareable(t *testing.T) (*cudasim.Sim, *cuda.Driver, *vmm.Engine) {
	t.Helper()
	t.Setenv("CUDASIM_GRANULARITY", fmt.Sprint(shareSize))
	return simulated(t, 1)
}

// pair is two engines, each with the other's memory, and memory of its own between memory that is not shared.
type pair struct {
	t          *testing.T
	sim        *cudasim.Sim
	engines    [2]*vmm.Engine
	neighbours []*neighbour
	own, other [2]uintptr
	shares     [2]vmm.Share  // of other, where Import opens it
	beside     [2][2]uintptr // of the size of own, before and behind it, or 0
}

// inExtents makes a resume give neighbours common extents, those of a pair one.
func inExtents(wait time.Duration) vmm.Options {
	return vmm.Options{ExtentBytes: 8 * shareSize, Importers: wait}
}

// eachPair runs a test with memory of Malloc, and with memory that the program makes and maps itself.
func eachPair(t *testing.T, test func(*testing.T, *pair)) {
	for kind, made := range pairs {
		t.Run(kind, func(t *testing.T) { test(t, made(t)) })
	}
}

var pairs = map[string]func(*testing.T) *pair{"allocated": newPair, "mapped by the program": newMappedPair}

// beside returns another engine on a driver, as if of another process.
func beside(t *testing.T, driver *cuda.Driver) *vmm.Engine {
	e := vmm.NewOn(driver)
	t.Cleanup(func() {
		e.Trim()
		e.Drain()
	})
	return e
}

// meet makes engines each other's neighbours, which may share memory.
func meet(engines ...*vmm.Engine) (neighbours []*neighbour) {
	for i, e := range engines {
		neighbours = append(neighbours, &neighbour{self: i, others: engines})
		vmm.HostOf(e).SetProcesses(neighbours[i])
		e.Shareable(true)
		e.CheckInvariants(true)
	}
	return neighbours
}

// newMappedPair is newPair with the driver's functions for virtual memory.
func newMappedPair(t *testing.T) *pair {
	sim, driver, first := shareable(t)
	p := &pair{t: t, sim: sim, engines: [2]*vmm.Engine{first, beside(t, driver)}}
	p.neighbours = meet(p.engines[:]...)
	var handles, imports [2]cuda.Handle
	mapped := func(e *vmm.Engine, handle cuda.Handle) uintptr {
		address, err := driver.MemAddressReserve(shareSize, 0)
		require.NoError(t, err)
		require.NoError(t, e.UserMapped().Map(address, shareSize, 0, handle, 0))
		require.NoError(t, e.UserMapped().SetAccess(address, shareSize, onDevice0))
		return address
	}
	for i, e := range p.engines {
		var err error
		request := vmm.Request{Size: shareSize, Tag: "t", Backup: vmm.BackupHost}
		handles[i], err = e.UserMapped().Create(request, cuda.PinnedOn(0).AsFile())
		require.NoError(t, err)
		p.own[i] = mapped(e, handles[i])
	}
	for i, e := range p.engines {
		share, size, err := p.engines[1-i].UserMapped().Name(handles[1-i])
		require.NoError(t, err)
		require.EqualValues(t, shareSize, size)
		imports[i], err = e.UserMapped().Import(0, vmm.Share{PID: 1 - i, ID: share.ID})
		require.NoError(t, err)
		p.other[i] = mapped(e, imports[i])
	}
	t.Cleanup(func() {
		for i, e := range p.engines {
			for _, each := range []struct {
				address uintptr
				handle  cuda.Handle
			}{{p.other[i], imports[i]}, {p.own[i], handles[i]}} {
				if each.address != 0 {
					require.NoError(t, e.UserMapped().Unmap(each.address, shareSize))
					require.NoError(t, driver.MemAddressFree(each.address, shareSize))
				}
				require.NoError(t, e.UserMapped().Release(each.handle))
			}
		}
	})
	return p
}

func newPair(t *testing.T) *pair {
	sim, driver, first := shareable(t)
	p := &pair{t: t, sim: sim, engines: [2]*vmm.Engine{first, beside(t, driver)}}
	p.neighbours = meet(p.engines[:]...)
	for i, e := range p.engines {
		all := mallocs(t, e, 3, vmm.Request{Size: shareSize, Tag: "t", Backup: vmm.BackupHost})
		p.beside[i], p.own[i] = [2]uintptr{all[0], all[2]}, all[1]
		require.NoError(t, pause(e, vmm.Options{}))
		require.NoError(t, resume(e, inExtents(0)))
	}
	require.EqualValues(t, 2, sim.Stat("handles"))
	for i, e := range p.engines {
		id, offset, size, err := p.engines[1-i].Shared().Name(p.own[1-i])
		require.NoError(t, err)
		require.EqualValues(t, shareSize, size)
		p.shares[i] = vmm.Share{PID: 1 - i, ID: id}
		p.other[i], err = e.Shared().Import(0, p.shares[i], offset)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for i, e := range p.engines {
			require.NoError(t, e.Shared().Close(p.other[i], false))
		}
	})
	return p
}

// both does something on both engines at once.
func (p *pair) both(do func(int, *vmm.Engine) error) (errs [2]error) {
	var all sync.WaitGroup
	for i, e := range p.engines {
		all.Go(func() { errs[i] = do(i, e) })
	}
	all.Wait()
	return errs
}

func (p *pair) pause(wait time.Duration) [2]error {
	return p.both(func(_ int, e *vmm.Engine) error { return pause(e, inExtents(wait)) })
}

func (p *pair) resume(wait time.Duration) [2]error {
	return p.both(func(_ int, e *vmm.Engine) error { return resume(e, inExtents(wait)) })
}

func (p *pair) fill(seed uint64) {
	for i := range p.engines {
		fill(p.own[i], shareSize, seed+uint64(i))
		for _, address := range p.beside[i] {
			if address != 0 {
				fill(address, shareSize, seed+uint64(address))
			}
		}
	}
}

func (p *pair) requireFilled(seed uint64) {
	p.t.Helper()
	for i := range p.engines {
		requireFilled(p.t, p.own[i], shareSize, seed+uint64(i))
		requireFilled(p.t, p.other[i], shareSize, seed+uint64(1-i))
		for _, address := range p.beside[i] {
			if address != 0 {
				requireFilled(p.t, address, shareSize, seed+uint64(address))
			}
		}
	}
}

func TestPausedTogether(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		segments := uint64(1)
		if p.beside[0][0] != 0 {
			segments = 3
		}
		for cycle := range uint64(hermetic.Often(20, 5)) {
			p.fill(2 * cycle)
			p.requireFilled(2 * cycle)
			require.Equal(t, [2]error{}, p.both(func(_ int, e *vmm.Engine) error {
				o := inExtents(10 * time.Second)
				o.SaveAll = cycle%2 == 1
				return pause(e, o)
			}))
			require.Zero(t, p.sim.Stat("handles"))
			stats, err := p.engines[0].Records().Stats()
			require.NoError(t, err)
			require.EqualValues(t, shareSize, stats.Devices[0].Tags[0].ImportedPaused)
			require.EqualValues(t, segments*shareSize, stats.Devices[0].Tags[0].BackupBytes, "each saves its own alone")
			require.EqualValues(t, segments*shareSize, stats.Devices[0].Tags[0].PausedBytes)
			require.Equal(t, [2]error{}, p.resume(time.Minute))
			p.requireFilled(2 * cycle)
			require.EqualValues(t, shareSize, p.engines[0].ImportedBytes())
			require.EqualValues(t, 2*segments, p.sim.Stat("handles"), "what is shared stands alone")
		}
	})
}

// The program knows nothing of memory that comes along with others' memory.
func TestOpenedRange(t *testing.T) {
	p := newPair(t)
	for range 2 {
		for i, e := range p.engines {
			base, size := e.Records().RangeOf(p.other[i] + shareSize - 1)
			require.Equal(t, p.other[i], base)
			require.EqualValues(t, shareSize, size)
			for _, outside := range []uintptr{p.other[i] - 1, p.other[i] + shareSize} {
				base, _ = e.Records().RangeOf(outside)
				require.Zero(t, base)
				require.ErrorIs(t, e.Shared().Close(outside, false), vmm.ErrInvalidAddress)
			}
		}
		require.Equal(t, [2]error{}, p.pause(time.Minute))
		require.Equal(t, [2]error{}, p.resume(time.Minute))
	}
}

// A process that has the extent of freed memory mapped holds up a pause as one with live memory does.
func TestSharedIsFreed(t *testing.T) {
	p := newPair(t)
	p.fill(1)
	first, second := p.engines[0], p.engines[1]
	require.NoError(t, first.Free(p.own[0], false))
	requireFilled(t, p.other[1], shareSize, 1)
	require.ErrorIs(t, pause(first, inExtents(10*time.Millisecond)), vmm.ErrImported)
	// Memory that takes its place is a different segment, and can be opened, too.
	p.own[0] = malloc(t, first, vmm.Request{Size: shareSize, Tag: "t", Backup: vmm.BackupHost})
	p.fill(3)
	id, _, _, err := first.Shared().Name(p.own[0])
	require.NoError(t, err)
	again, err := second.Shared().Import(0, vmm.Share{ID: id}, 0)
	require.NoError(t, err)
	require.NotEqual(t, p.other[1], again)
	require.NoError(t, second.Shared().Close(again, false))
	require.ErrorIs(t, pause(first, inExtents(10*time.Millisecond)), vmm.ErrImported)
	for cycle := range 2 {
		require.Equal(t, [2]error{}, p.pause(time.Minute))
		require.Zero(t, p.sim.Stat("handles"))
		errs := p.resume(10 * time.Second)
		require.NoError(t, errs[0])
		if cycle == 0 { // then it is known to be lost
			require.ErrorIs(t, errs[1], vmm.ErrShareGone)
		} else {
			require.NoError(t, errs[1])
		}
		requireFilled(t, p.own[0], shareSize, 3)
	}
	require.EqualValues(t, 6, p.sim.Stat("handles"))
}

// Memory that has a name before it is resumed gets its own extent at once; its neighbours do not.
func TestSharedWhilePaused(t *testing.T) {
	sim, driver, first := shareable(t)
	second := beside(t, driver)
	meet(first, second)
	all := filled(t, first, 8, vmm.Request{Size: shareSize, Tag: "t", Backup: vmm.BackupHost})
	require.NoError(t, pause(first, vmm.Options{}))
	var opened [2]uintptr
	var shares [2]vmm.Share
	for i, n := range []int{3, 5} {
		id, _, _, err := first.Shared().Name(all[n])
		require.NoError(t, err)
		shares[i].ID = id
		_, err = second.Shared().Import(0, shares[i], 0)
		require.ErrorIs(t, err, vmm.ErrSharePaused)
	}
	require.NoError(t, resume(first, inExtents(0)))
	require.EqualValues(t, 5, sim.Stat("handles")) // 0 to 2, 3, 4, 5, 6 and 7
	for i, n := range []int{3, 5} {
		address, err := second.Shared().Import(0, shares[i], 0)
		require.NoError(t, err)
		opened[i] = address
		requireFilled(t, address, shareSize, uint64(n))
	}
	require.ErrorIs(t, pause(first, inExtents(0)), vmm.ErrImported)
	for i := range opened {
		require.NoError(t, second.Shared().Close(opened[i], false))
	}
	requireAll(t, all, shareSize)
}

// Names are asked for, opened and closed while the memory is paused and resumed: what is open is the memory.
func TestOpenedMeanwhile(t *testing.T) {
	p := newPair(t)
	p.fill(1)
	var all sync.WaitGroup
	stop := make(chan struct{})
	var opened atomic.Int64
	for i, e := range p.engines {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id, _, _, err := p.engines[1-i].Shared().Name(p.beside[1-i][n%2])
				require.NoError(t, err)
				address, err := e.Shared().Import(0, vmm.Share{PID: 1 - i, ID: id}, 0)
				if errors.Is(err, vmm.ErrSharePaused) {
					time.Sleep(50 * time.Microsecond)
					continue
				}
				require.NoError(t, err)
				opened.Add(1)
				require.NoError(t, e.Shared().Close(address, false))
				time.Sleep(50 * time.Microsecond) // the pauses are to have the processor too
			}
		})
	}
	for range 20 {
		for _, err := range p.pause(10 * time.Second) {
			require.NoError(t, err)
		}
		require.Zero(t, p.sim.Stat("handles"))
		require.Equal(t, [2]error{}, p.resume(time.Minute))
		p.requireFilled(1)
	}
	close(stop)
	all.Wait()
	require.Positive(t, opened.Load())
}

// Pauses of which each may be refused by the other's, at any moment, leave nothing half done.
func TestPausesCross(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		for cycle := range uint64(hermetic.Often(60, 20)) {
			p.fill(2 * cycle)
			for _, err := range p.pause(time.Duration(cycle%4) * time.Millisecond) {
				require.True(t, err == nil || errors.Is(err, vmm.ErrImported), "%v", err)
			}
			require.Equal(t, [2]error{}, p.resume(time.Minute))
			p.requireFilled(2 * cycle)
		}
	})
}

// A driver call that fails leaves contents and addresses as they are, and all can be paused together afterwards.
func TestSharedAndFailing(t *testing.T) {
	hermetic.Thorough(t)
	for kind, made := range pairs {
		for seed, function := range []string{"cuMemUnmap", "cuMemRelease", "cuMemMap", "cuMemSetAccess", "cuMemCreate",
			"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemExportToShareableHandle",
			"cuMemImportFromShareableHandle", "cuCtxRecordEvent"} {
			t.Run(kind+", "+function, func(t *testing.T) { failing(t, made, function, seed) })
		}
	}
}

// failing fails each call of a function once, between pauses; the first pauses memory that lies among its neighbours.
func failing(t *testing.T, made func(*testing.T) *pair, function string, seed int) {
	for nth, more := 1, true; more; nth++ {
		more = t.Run(fmt.Sprint(nth), func(t *testing.T) {
			p := made(t)
			p.fill(uint64(10 * seed))
			before := p.sim.FailuresFired()
			p.sim.Fail(function, nth, int(cuda.Unknown))
			more = false
			// One may have been too slow for the other.
			for wait, refused := 50*time.Millisecond, true; refused && !more; wait *= 2 {
				errs := p.pause(wait)
				refused = slices.ContainsFunc(errs[:], func(err error) bool { return errors.Is(err, vmm.ErrImported) })
				p.resume(wait)
				more = p.sim.FailuresFired() > before
			}
			p.sim.ClearFailures()
			require.Equal(t, [2]error{}, p.resume(time.Minute))
			p.requireFilled(uint64(10 * seed))
			require.Equal(t, [2]error{}, p.pause(time.Minute))
			require.Zero(t, p.sim.Stat("handles"))
			require.Equal(t, [2]error{}, p.resume(time.Minute))
			p.requireFilled(uint64(10 * seed))
			require.True(t, more || nth > 1, "it is never called")
		}) && more
	}
}

// A device whose memory cannot be shared still has memory. A caller that would share it gets an error. An extent
// remembers the names of freed segments only as long as another process has them.
func TestNamesAreForgotten(t *testing.T) {
	_, _, e := shareable(t)
	meet(e, beside(t, e.Driver()))
	r := vmm.Request{Size: shareSize, Tag: "t"}
	all := mallocs(t, e, 4, r)
	cycle(t, e, vmm.Options{ExtentBytes: 4 * shareSize})
	frees(t, e, all[1])
	for range 100 {
		a, err := e.Malloc(r)
		require.NoError(t, err)
		_, _, _, err = e.Shared().Name(a)
		require.NoError(t, err)
		require.NoError(t, e.FreeIdle(a, false))
	}
	require.Zero(t, e.ExportNames())
}

func TestNotToBeShared(t *testing.T) {
	for call, fail := range map[string]func(*cudasim.Sim){
		"a device without it": func(sim *cudasim.Sim) { sim.Fail("cuDeviceGetAttribute", 3, int(cuda.InvalidValue)) },
		"one that refuses it": func(sim *cudasim.Sim) { sim.Fail("cuMemCreate", 1, int(cuda.NotSupported)) },
	} {
		t.Run(call, func(t *testing.T) {
			sim, _, engine := simulated(t, 1)
			engine.Shareable(true)
			fail(sim)
			all := mallocs(t, engine, 2, vmm.Request{Size: 2 * mib, Tag: "t"})
			require.EqualValues(t, 1, sim.FailuresFired())
			for _, address := range all {
				_, _, _, err := engine.Shared().Name(address)
				require.ErrorIs(t, err, cuda.NotSupported)
				require.ErrorContains(t, err,
					"device 0, or its driver, makes no memory that can be mapped in other processes")
			}
		})
	}
	_, _, engine := simulated(t, 1)
	address := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "t"})
	_, _, _, err := engine.Shared().Name(address)
	require.ErrorIs(t, err, vmm.ErrNotShareable)
}

// A notice that another process did not receive is sent again.
func TestReturnedLater(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		p.fill(1)
		p.neighbours[1].deaf.Store(true)
		require.NoError(t, pause(p.engines[1], name(""))) // of another tag
		errs := p.both(func(i int, e *vmm.Engine) error {
			return pause(e, vmm.Options{Importers: []time.Duration{500 * time.Millisecond, 20 * time.Second}[i]})
		})
		require.ErrorIs(t, errs[0], vmm.ErrImported)
		require.NoError(t, errs[1])
		p.neighbours[1].deaf.Store(false) // the engine does not call the importer
		require.NoError(t, pause(p.engines[0], vmm.Options{Importers: 10 * time.Second}))
		require.Equal(t, [2]error{}, p.resume(time.Second))
		p.requireFilled(1)
	})
}

// Memory that is gone when it is to be resumed holds nothing up: it is lost, and its users get an error.
func TestLostWhilePaused(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		importer := p.engines[1]
		var opened atomic.Int64
		vmm.HostOf(importer).SetGated(func(now bool) {
			if !now {
				opened.Add(1)
			}
		})
		gated := vmm.Options{Gated: true, Importers: 10 * time.Second}
		errs := p.both(func(_ int, e *vmm.Engine) error { return pause(e, gated) })
		require.Equal(t, [2]error{}, errs)
		p.neighbours[1].lost.Store(true)

		err := resume(importer, inExtents(time.Minute))
		require.ErrorIs(t, err, vmm.ErrShareGone)
		require.EqualValues(t, 1, opened.Load())
		require.False(t, importer.Records().Gated())
		require.NoError(t, resume(importer, inExtents(time.Minute)), "it was said")
		stats := tagStats(t, importer, "t")
		require.EqualValues(t, shareSize, stats.ImportedLost)
		require.Zero(t, stats.ImportedPaused+stats.ImportedBytes)
		_, ok := importer.Records().MemoryAt(p.other[1])
		require.False(t, ok)
		if p.shares[1].ID != 0 {
			_, err = importer.Shared().Import(0, p.shares[1], 0)
			require.ErrorIs(t, err, vmm.ErrShareGone)
		} else {
			handle, err := importer.UserMapped().Retain(p.other[1])
			require.NoError(t, err)
			err = importer.UserMapped().Use(handle, false, func(cuda.Handle) error { return nil })
			require.ErrorIs(t, err, vmm.ErrShareGone)
			require.ErrorIs(t, importer.UserMapped().SetAccess(p.other[1], shareSize, onDevice0), vmm.ErrShareGone)
			require.NoError(t, importer.UserMapped().Unmap(p.other[1], shareSize))
			require.ErrorIs(t, importer.UserMapped().Map(p.other[1], shareSize, 0, handle, 0), vmm.ErrShareGone)
			require.NoError(t, importer.UserMapped().Release(handle))
			p.other[1] = 0
		}
		require.Equal(t, [2]error{}, p.pause(time.Minute))
		require.Equal(t, [2]error{}, p.resume(time.Minute))
	})
}

// If the driver refuses once to make shareable memory, that concerns only this memory.
func TestOneRefusal(t *testing.T) {
	p := newPair(t)
	p.fill(1)
	first := p.engines[0]
	refusing := func() { p.sim.Fail("cuMemCreate", 1, int(cuda.NotSupported)) }
	refusing()
	plain := malloc(t, first, vmm.Request{Size: shareSize, Tag: "plain"})
	_, _, _, err := first.Shared().Name(plain)
	require.ErrorIs(t, err, cuda.NotSupported)
	require.NoError(t, first.Free(plain, false))

	require.Equal(t, [2]error{}, p.pause(time.Minute))
	require.ErrorIs(t, resume(p.engines[1], vmm.Options{}), vmm.ErrSharePaused) // its own is back
	refused := false
	for call := 1; call <= 3 && !refused; call++ { // one of them makes shared memory
		p.sim.Fail("cuMemCreate", call, int(cuda.NotSupported))
		err := resume(first, vmm.Options{})
		refused = errors.Is(err, cuda.NotSupported)
		require.True(t, err == nil || refused, "%v", err)
		require.NoError(t, pause(first, vmm.Options{}))
		p.sim.ClearFailures()
	}
	require.True(t, refused)
	require.Equal(t, [2]error{}, p.resume(time.Minute))
	p.requireFilled(1)
}

// Waiting for a stopped process delays nothing that concerns others.
func TestOneIsStopped(t *testing.T) {
	_, driver, importer := shareable(t)
	engines := []*vmm.Engine{beside(t, driver), beside(t, driver), importer}
	neighbours := meet(engines...)
	var other [2]uintptr
	var shares [2]vmm.Share
	for i := range 2 {
		id, _, _, err := engines[i].Shared().Name(malloc(t, engines[i], vmm.Request{Size: shareSize, Tag: "t"}))
		require.NoError(t, err)
		shares[i] = vmm.Share{PID: i, ID: id}
	}
	for i := range 2 {
		var err error
		other[i], err = importer.Shared().Import(0, shares[i], 0)
		require.NoError(t, err)
	}
	require.NoError(t, pause(importer, vmm.Options{}))

	stopped := make(chan struct{})
	goesOn := sync.OnceFunc(func() { close(stopped) })
	defer goesOn() // before what the clean-up frees
	neighbours[2].stopped = stopped
	resumed, opened := make(chan error), make(chan error)
	go func() { resumed <- resume(importer, vmm.Options{Importers: time.Minute}) }()
	require.Eventually(t, func() bool { return importer.ImportedBytes() == shareSize }, time.Minute, time.Millisecond)
	malloc(t, importer, vmm.Request{Size: shareSize, Tag: "mine"})
	cycle(t, importer, name("mine"))
	go func() {
		_, err := importer.Shared().Import(0, vmm.Share{ID: 1}, 0) // of the one that is stopped
		opened <- err
	}()
	again, err := importer.Shared().Import(0, shares[1], 0)
	require.NoError(t, err)
	require.Equal(t, other[1], again)
	require.NoError(t, importer.Shared().Close(again, false))
	importer.Trim()
	goesOn()
	require.NoError(t, <-resumed)
	require.ErrorIs(t, <-opened, vmm.ErrShareGone)
	for i := range 2 {
		require.NoError(t, importer.Shared().Close(other[i], false))
	}
}
