package vmm_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// Engines that have each other's memory mapped, as if each were another process (preload/ipc_test.go has processes).

// neighbour is an engine among others, by number.
type neighbour struct {
	self   int
	others *[2]*vmm.Engine
	deaf   atomic.Bool // does not hear what is returned
}

func (n *neighbour) Fetch(share vmm.Share, number uint64) (vmm.Lent, error) {
	return n.others[share.PID].Export(share.ID, vmm.Importer{PID: n.self, Number: number})
}

func (n *neighbour) Return(share vmm.Share, number uint64) error {
	if n.deaf.Load() {
		return errors.New("not heard")
	}
	n.others[share.PID].Returned(share.ID, vmm.Importer{PID: n.self, Number: number})
	return nil
}

func (n *neighbour) Gone(vmm.Importer) bool { return false }

const shareSize = 4 * mib

// pair is two engines, each with memory of its own and the other's.
type pair struct {
	t          *testing.T
	sim        *cudasim.Sim
	engines    [2]*vmm.Engine
	neighbours [2]*neighbour
	own, other [2]uintptr
}

// eachPair runs a test with memory of Malloc, and with memory that the program makes and maps itself.
func eachPair(t *testing.T, test func(*testing.T, *pair)) {
	t.Run("allocated", func(t *testing.T) { test(t, newPair(t)) })
	t.Run("mapped by the program", func(t *testing.T) { test(t, newMappedPair(t)) })
}

// newMappedPair is newPair with the driver's functions for virtual memory.
func newMappedPair(t *testing.T) *pair {
	sim, driver, first := simulated(t, 1)
	p := &pair{t: t, sim: sim, engines: [2]*vmm.Engine{first, vmm.New(driver, func(uintptr, uint64) error { return nil })}}
	var handles, imports [2]cuda.Handle
	mapped := func(e *vmm.Engine, handle cuda.Handle) uintptr {
		address, err := driver.MemAddressReserve(shareSize, 0)
		require.NoError(t, err)
		require.NoError(t, e.MemMap(address, shareSize, 0, handle, 0))
		require.NoError(t, e.MemSetAccess(address, shareSize, onDevice0))
		return address
	}
	for i, e := range p.engines {
		p.neighbours[i] = &neighbour{self: i, others: &p.engines}
		e.Processes(p.neighbours[i])
		e.Shareable(true)
		e.CheckInvariants(true)
		var err error
		request := vmm.Request{Size: shareSize, Tag: "t", Backup: vmm.BackupHost}
		handles[i], err = e.MemCreate(request, cuda.PinnedOn(0).AsFile())
		require.NoError(t, err)
		p.own[i] = mapped(e, handles[i])
	}
	for i, e := range p.engines {
		share, size, err := p.engines[1-i].ShareHandle(handles[1-i])
		require.NoError(t, err)
		require.EqualValues(t, shareSize, size)
		imports[i], err = e.ImportHandle(0, vmm.Share{PID: 1 - i, ID: share.ID})
		require.NoError(t, err)
		p.other[i] = mapped(e, imports[i])
	}
	t.Cleanup(func() {
		for i, e := range p.engines {
			for _, each := range []struct {
				address uintptr
				handle  cuda.Handle
			}{{p.other[i], imports[i]}, {p.own[i], handles[i]}} {
				require.NoError(t, e.MemUnmap(each.address, shareSize))
				require.NoError(t, e.MemRelease(each.handle))
				require.NoError(t, driver.MemAddressFree(each.address, shareSize))
			}
		}
		p.engines[1].Trim()
		p.engines[1].Drain()
	})
	return p
}

func newPair(t *testing.T) *pair {
	sim, driver, first := simulated(t, 1)
	p := &pair{t: t, sim: sim, engines: [2]*vmm.Engine{first, vmm.New(driver, func(uintptr, uint64) error { return nil })}}
	for i, e := range p.engines {
		p.neighbours[i] = &neighbour{self: i, others: &p.engines}
		e.Processes(p.neighbours[i])
		e.Shareable(true)
		e.CheckInvariants(true)
		var err error
		p.own[i], err = e.Malloc(vmm.Request{Size: shareSize, Tag: "t", Backup: vmm.BackupHost})
		require.NoError(t, err)
	}
	for i, e := range p.engines {
		id, offset, size, err := p.engines[1-i].Share(p.own[1-i])
		require.NoError(t, err)
		require.EqualValues(t, shareSize, size)
		p.other[i], err = e.Import(0, vmm.Share{PID: 1 - i, ID: id}, offset)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for i, e := range p.engines {
			require.NoError(t, e.Close(p.other[i], false))
			require.NoError(t, e.Free(p.own[i], false))
		}
		p.engines[1].Trim()
		p.engines[1].Drain()
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
	return p.both(func(_ int, e *vmm.Engine) error { return pause(e, vmm.Options{Importers: wait}) })
}

func (p *pair) resume(wait time.Duration) [2]error {
	return p.both(func(_ int, e *vmm.Engine) error { return resume(e, vmm.Options{Importers: wait}) })
}

func (p *pair) fill(seed uint64) {
	for i := range p.engines {
		fill(p.own[i], shareSize, seed+uint64(i))
	}
}

func (p *pair) requireFilled(seed uint64) {
	p.t.Helper()
	for i := range p.engines {
		requireFilled(p.t, p.own[i], shareSize, seed+uint64(i))
		requireFilled(p.t, p.other[i], shareSize, seed+uint64(1-i))
	}
}

func TestPausedTogether(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		for cycle := range uint64(20) {
			p.fill(2 * cycle)
			p.requireFilled(2 * cycle)
			require.Equal(t, [2]error{}, p.pause(10*time.Second))
			require.Zero(t, p.sim.Stat("handles"))
			stats, err := p.engines[0].Stats()
			require.NoError(t, err)
			require.EqualValues(t, shareSize, stats.Devices[0].Tags[0].ImportedPaused)
			require.EqualValues(t, shareSize, stats.Devices[0].Tags[0].PausedBytes)
			require.Equal(t, [2]error{}, p.resume(10*time.Second))
			p.requireFilled(2 * cycle)
			require.EqualValues(t, shareSize, p.engines[0].ImportedBytes())
		}
	})
}

// Pauses of which each may be refused by the other's, at any moment, leave nothing half done.
func TestPausesCross(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		for cycle := range uint64(60) {
			p.fill(2 * cycle)
			for _, err := range p.pause(time.Duration(cycle%4) * time.Millisecond) {
				require.True(t, err == nil || errors.Is(err, vmm.ErrImported), "%v", err)
			}
			require.Equal(t, [2]error{}, p.resume(10*time.Second))
			p.requireFilled(2 * cycle)
		}
	})
}

// A call of the driver that fails leaves contents and addresses as they are, and all can be paused together afterwards.
func TestSharedAndFailing(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		for seed, function := range []string{"cuMemUnmap", "cuMemRelease", "cuMemMap", "cuMemSetAccess", "cuMemCreate", "cuMemcpyDtoHAsync_v2",
			"cuMemcpyHtoDAsync_v2", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuCtxRecordEvent"} {
			for nth := 1; ; nth++ {
				p.fill(uint64(10 * seed))
				before := p.sim.FailuresFired()
				p.sim.Fail(function, nth, int(cuda.Unknown))
				p.pause(50 * time.Millisecond)
				p.resume(50 * time.Millisecond)
				fired := p.sim.FailuresFired() > before
				p.sim.ClearFailures()
				require.Equal(t, [2]error{}, p.resume(10*time.Second), "%s %d", function, nth)
				p.requireFilled(uint64(10 * seed))
				require.Equal(t, [2]error{}, p.pause(10*time.Second), "%s %d", function, nth)
				require.Zero(t, p.sim.Stat("handles"), "%s %d", function, nth)
				require.Equal(t, [2]error{}, p.resume(10*time.Second), "%s %d", function, nth)
				p.requireFilled(uint64(10 * seed))
				if !fired {
					require.Greater(t, nth, 1, "%s is never called", function)
					break
				}
			}
		}
	})
}

// What another process did not hear is said again.
func TestReturnedLater(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		p.fill(1)
		p.neighbours[1].deaf.Store(true)
		require.NoError(t, pause(p.engines[1], vmm.Options{Tag: new(string)})) // of another tag
		errs := p.both(func(i int, e *vmm.Engine) error {
			return pause(e, vmm.Options{Importers: []time.Duration{500 * time.Millisecond, 20 * time.Second}[i]})
		})
		require.ErrorIs(t, errs[0], vmm.ErrImported)
		require.NoError(t, errs[1])
		p.neighbours[1].deaf.Store(false)
		require.NoError(t, pause(p.engines[1], vmm.Options{})) // which has nothing else to do
		require.NoError(t, pause(p.engines[0], vmm.Options{Importers: 10 * time.Second}))
		require.Equal(t, [2]error{}, p.resume(time.Second))
		p.requireFilled(1)
	})
}
