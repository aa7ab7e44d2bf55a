package vmm_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/cudasim"
	"tms/vmm"
	"tms/vmm/cuda"
)

// mapper does what a program does that maps memory itself: a reservation, and chunks of memory in it.
type mapper struct {
	t       require.TestingT
	driver  *cuda.Driver
	engine  *vmm.Engine
	base    uintptr
	request vmm.Request
}

const (
	chunk  = 2 * mib
	chunks = 8
)

var onDevice0 = []cuda.AccessDesc{{Location: cuda.Location{Kind: cuda.LocationDevice}, Flags: cuda.AccessReadWrite}}

func newMapper(t require.TestingT, driver *cuda.Driver, engine *vmm.Engine, r vmm.Request) *mapper {
	base, err := driver.MemAddressReserve(chunks*chunk, 0)
	require.NoError(t, err)
	r.Size = chunk
	return &mapper{t, driver, engine, base, r}
}

func (m *mapper) at(n int) uintptr { return m.base + uintptr(n*chunk) }

// create makes memory and maps it as chunk n, without access yet.
func (m *mapper) create(n int) cuda.Handle {
	handle, err := m.engine.UserMapped().Create(m.request, cuda.PinnedOn(m.request.Device))
	require.NoError(m.t, err)
	require.NoError(m.t, m.engine.UserMapped().Map(m.at(n), chunk, 0, handle, 0))
	return handle
}

func (m *mapper) open(from, to int) {
	require.NoError(m.t, m.engine.UserMapped().SetAccess(m.at(from), uint64((to-from)*chunk), onDevice0))
}

func (m *mapper) unmap(from, to int, handles ...cuda.Handle) {
	require.NoError(m.t, m.engine.UserMapped().Unmap(m.at(from), uint64((to-from)*chunk)))
	for _, h := range handles {
		require.NoError(m.t, m.engine.UserMapped().Release(h))
	}
}

func (m *mapper) end() {
	require.ErrorIs(m.t, m.engine.UserMapped().AddressFree(m.base, chunks*chunk), vmm.ErrNotOurs)
	require.NoError(m.t, m.driver.MemAddressFree(m.base, chunks*chunk))
}

var weights = vmm.Request{Tag: "weights", Backup: vmm.BackupHost}

// mapped is newMapper on a fresh simulator.
func mapped(t *testing.T, devices int, r vmm.Request) (*cudasim.Sim, *vmm.Engine, *mapper) {
	t.Helper()
	sim, driver, engine := simulated(t, devices)
	return sim, engine, newMapper(t, driver, engine, r)
}

// fill makes the first count chunks, with contents by their place.
func (m *mapper) fill(count int) (handles []cuda.Handle) {
	for n := range count {
		handles = append(handles, m.create(n))
	}
	m.open(0, count)
	for n := range count {
		fill(m.at(n), chunk, uint64(n))
	}
	return handles
}

// Every way to keep contents, and none.
func TestUserMappedReturns(t *testing.T) {
	for _, r := range []vmm.Request{
		weights,
		{Tag: "weights", Backup: vmm.BackupHost, Incremental: true},
		{Tag: "weights", Backup: vmm.BackupDisk},
		{Tag: "weights", Backup: vmm.BackupPeer, Target: 1},
		{Tag: "weights"},
	} {
		sim, engine, m := mapped(t, 2, r)
		handles := m.fill(3)
		for cycle := range uint64(3) {
			fill(m.at(int(cycle)), chunk, 10+cycle)
			require.NoError(t, engine.Prepare(nil)())
			require.NoError(t, pause(engine, vmm.Options{Verify: true, DiskDir: t.TempDir()}))
			require.Zero(t, sim.Stat("used:0"))
			require.EqualValues(t, 3*chunk, tagStats(t, engine, "weights").PausedBytes)
			require.NoError(t, resume(engine, vmm.Options{Verify: true, ExtentBytes: 1 << 30}))
			require.EqualValues(t, 3*chunk, tagStats(t, engine, "weights").PhysicalBytes)
			for n := range cycle + 1 {
				if r.Backup == vmm.BackupNone {
					require.Zero(t, bytesAt(m.at(int(n)), chunk)[0])
				} else {
					requireFilled(t, m.at(int(n)), chunk, 10+n)
				}
			}
		}
		m.unmap(0, 3, handles...)
		m.end()
	}
}

// The program may do with paused memory whatever it may do with any memory, except touch it.
func TestUserMappedWhilePaused(t *testing.T) {
	sim, engine, m := mapped(t, 1, weights)
	driver, handles := m.driver, m.fill(4)
	require.NoError(t, pause(engine, vmm.Options{}))

	m.unmap(1, 2, handles[1])
	require.ErrorIs(t, engine.UserMapped().Release(handles[1]), cuda.InvalidValue)
	handles[1] = m.create(1) // active, between paused ones
	m.open(0, 4)
	fill(m.at(1), chunk, 9)
	require.EqualValues(t, 1, sim.Stat("handles"))

	// A mapping of the driver's own among them.
	plain, err := driver.MemCreate(chunk, 0)
	require.NoError(t, err)
	require.ErrorIs(t, engine.UserMapped().Map(m.at(2), chunk, 0, plain, 0), cuda.InvalidValue)
	require.ErrorIs(t, engine.UserMapped().Map(m.at(4), chunk, 0, plain, 0), vmm.ErrNotOurs)
	require.NoError(t, driver.MemMap(m.at(4), chunk, plain))
	m.open(0, 5)
	fill(m.at(4), chunk, 10)

	// Contents go with the memory to another address.
	require.NoError(t, engine.UserMapped().Unmap(m.at(3), chunk))
	require.NoError(t, engine.UserMapped().Map(m.at(6), chunk, 0, handles[3], 0))
	m.open(6, 7)

	require.ErrorIs(t, engine.UserMapped().Unmap(m.at(0), chunk/2), cuda.InvalidValue)
	require.ErrorIs(t, engine.UserMapped().Unmap(m.at(0)+mib, chunk), cuda.InvalidValue)
	require.Error(t, engine.UserMapped().Unmap(m.at(5), 2*chunk)) // nothing is at 5
	require.ErrorIs(t, engine.UserMapped().AddressFree(m.base, chunks*chunk), cuda.InvalidValue)
	require.ErrorIs(t, engine.UserMapped().Use(handles[0], false, nil), cuda.NotSupported)

	require.NoError(t, resume(engine, vmm.Options{}))
	for n, seed := range map[int]uint64{0: 0, 1: 9, 2: 2, 4: 10, 6: 3} {
		requireFilled(t, m.at(n), chunk, seed)
	}
	require.NoError(t, pause(engine, vmm.Options{}))
	m.unmap(0, 3, handles[:3]...)
	m.unmap(6, 7, handles[3])
	require.NoError(t, driver.MemUnmap(m.at(4), chunk))
	require.NoError(t, driver.MemRelease(plain))
	require.Zero(t, sim.Stat("handles"))
	m.end()
}

// Memory that the program unmaps while it is paused comes back at the resume as well, whether it is mapped by then, or
// not, or without access for the device; however often a call fails, and in whichever place.
func TestUserMappedComesBackUnmapped(t *testing.T) {
	for _, function := range []string{"", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuMemUnmap", "cuMemAddressFree"} {
		for _, r := range []vmm.Request{weights, {Tag: "weights"}, {Tag: "weights", Backup: vmm.BackupDisk}} {
			sim, engine, m := mapped(t, 1, r)
			engine.CheckInvariants(true)
			o := vmm.Options{DiskDir: t.TempDir(), Verify: true, Poison: true, Gated: true}
			handles := m.fill(4)
			require.NoError(t, pause(engine, o))
			m.unmap(0, 2)
			m.unmap(3, 4, handles[3])
			require.NoError(t, engine.UserMapped().Map(m.at(1), chunk, 0, handles[1], 0))
			none := []cuda.AccessDesc{{Location: onDevice0[0].Location}}
			require.NoError(t, engine.UserMapped().SetAccess(m.at(2), chunk, none))
			require.EqualValues(t, 3*chunk, tagStats(t, engine, "weights").PausedBytes)

			if function != "" {
				sim.Fail(function, 2, int(cuda.OutOfMemory))
			}
			for resume(engine, o) != nil {
				require.True(t, engine.Records().Gated())
				engine.FreeDeferred() // what else was refused
				require.Zero(t, sim.Stat("handles"), function)
				require.EqualValues(t, 1, sim.Stat("reservations"), function)
			}
			require.False(t, engine.Records().Gated())
			engine.FreeDeferred()
			require.EqualValues(t, 1, sim.Stat("reservations"), function)
			require.NoError(t, engine.UserMapped().Use(handles[0], false, func(cuda.Handle) error { return nil }))
			require.NoError(t, engine.UserMapped().Map(m.at(4), chunk, 0, handles[0], 0))
			m.open(4, 5)
			m.open(1, 3)
			for n, at := range []int{4, 1, 2} {
				if r.Backup == vmm.BackupNone {
					require.EqualValues(t, 0x7f, bytesAt(m.at(at), chunk)[chunk-1])
				} else {
					requireFilled(t, m.at(at), chunk, uint64(n))
				}
			}
			require.NoError(t, pause(engine, o)) // all of it is the tag's once more
			require.Zero(t, sim.Stat("handles"))
			m.unmap(1, 3, handles[1:3]...)
			m.unmap(4, 5, handles[0]) // while it is paused: there is nothing left to come back
			require.False(t, engine.Records().Gated())
			require.NoError(t, resume(engine, o))
			require.Zero(t, sim.Stat("handles"))
			m.end()
		}
	}
}

func TestUserMappedThatStays(t *testing.T) {
	sim, engine, m := mapped(t, 1, weights)
	closed, lent := m.create(0), m.create(1)
	m.open(1, 2)
	require.NoError(t, engine.UserMapped().Use(lent, true, func(cuda.Handle) error { return nil }))
	again, err := engine.UserMapped().Retain(m.at(1) + mib)
	require.NoError(t, err)
	require.Equal(t, lent, again)
	fill(m.at(1), chunk, 1)
	require.NoError(t, pause(engine, vmm.Options{}))
	require.EqualValues(t, 2, sim.Stat("handles"))
	m.open(0, 1)
	require.NoError(t, pause(engine, vmm.Options{}))
	require.EqualValues(t, 1, sim.Stat("handles"))
	requireFilled(t, m.at(1), chunk, 1)
	require.NoError(t, resume(engine, vmm.Options{}))
	require.ErrorIs(t, engine.Free(m.at(1), false), vmm.ErrInvalidAddress)

	// Released first, unmapped later.
	require.NoError(t, engine.UserMapped().Release(lent))
	require.NoError(t, engine.UserMapped().Release(again))
	require.ErrorIs(t, engine.UserMapped().Release(lent), cuda.InvalidValue)
	requireFilled(t, m.at(1), chunk, 1)
	m.unmap(0, 2, closed)
	require.Zero(t, sim.Stat("handles"))
	m.end()
}

// Every driver call of a cycle fails once: the cycle then succeeds, with the contents, and nothing is left.
func TestUserMappedAndFailures(t *testing.T) {
	for _, function := range []string{"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
		"cuMemHostRegister", "cuMemcpyDtoHAsync"} {
		for nth := 1; nth <= 3; nth++ {
			sim, engine, m := mapped(t, 1, weights)
			handles := m.fill(2)
			intact := func() {
				t.Helper()
				requireFilled(t, m.at(0), chunk, 0)
				requireFilled(t, m.at(1), chunk, 1)
			}
			sim.Fail(function, nth, int(cuda.OutOfMemory))
			for pause(engine, vmm.Options{}) != nil {
				if function == "cuMemRelease" {
					continue // paused; only the memory is still held
				}
				intact()
			}
			require.Zero(t, sim.Stat("handles"))
			if resume(engine, vmm.Options{}) != nil {
				require.Zero(t, sim.Stat("handles"))
				require.NoError(t, resume(engine, vmm.Options{}))
			}
			intact()
			sim.ClearFailures()

			// And those of the program itself.
			sim.Fail(function, 1, int(cuda.OutOfMemory))
			if handle, err := engine.UserMapped().Create(m.request, cuda.PinnedOn(0)); err == nil {
				for engine.UserMapped().Map(m.at(2), chunk, 0, handle, 0) != nil {
					require.Equal(t, "cuMemMap", function)
				}
				for engine.UserMapped().SetAccess(m.at(2), chunk, onDevice0) != nil {
					require.Equal(t, "cuMemSetAccess", function)
				}
				for engine.UserMapped().Unmap(m.at(2), chunk) != nil {
					require.Equal(t, "cuMemUnmap", function)
				}
				for engine.UserMapped().Release(handle) != nil {
					require.Equal(t, "cuMemRelease", function)
				}
			} else {
				require.Equal(t, "cuMemCreate", function)
			}
			sim.ClearFailures()
			m.unmap(0, 2, handles...)
			m.end()
			engine.Drain()
			require.Zero(t, sim.Stat("handles"))
		}
	}
}

func TestUserMappedAndThreads(t *testing.T) {
	sim, driver, engine := simulated(t, 1)
	var mappers, pauser sync.WaitGroup
	stop := make(chan struct{})
	pauser.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = pause(engine, vmm.Options{})
				_ = resume(engine, vmm.Options{})
				time.Sleep(50 * time.Microsecond) // the mappers are to have the processor too
			}
		}
	})
	for range 4 {
		mappers.Go(func() {
			m := newMapper(t, driver, engine, weights)
			until := time.Now().Add(300 * time.Millisecond)
			for time.Now().Before(until) {
				var handles []cuda.Handle
				for n := range chunks {
					handles = append(handles, m.create(n))
				}
				m.open(0, chunks)
				m.unmap(0, chunks, handles...)
			}
			m.end()
		})
	}
	mappers.Wait()
	close(stop)
	pauser.Wait()
	require.Zero(t, sim.Stat("handles"))
}

// One unmap of several mappings, whose handles are released: at no moment does a pause find one that the driver has
// unmapped already.
func TestUserMappedRangeBesidePause(t *testing.T) {
	sim, engine, m := mapped(t, 1, weights)
	engine.CheckInvariants(true)
	for _, h := range m.fill(4) {
		require.NoError(t, engine.UserMapped().Release(h))
	}
	sim.Fail("cuMemUnmap", 1, int(cuda.Unknown))
	require.ErrorIs(t, engine.UserMapped().Unmap(m.at(0), 4*chunk), cuda.Unknown) // nothing has changed
	cycle(t, engine, name("weights"))
	for n := range 4 {
		requireFilled(t, m.at(n), chunk, uint64(n))
	}

	var releases atomic.Int64
	defer at("cuMemRelease", func() error {
		if releases.Add(1) == 1 {
			require.NoError(t, pause(engine, name("weights")))
		}
		return nil
	})()
	m.unmap(0, 4)
	require.EqualValues(t, 4, releases.Load())
	require.Zero(t, sim.Stat("handles"))
	m.end()
}

func TestUserMappedAndReset(t *testing.T) {
	sim, engine, m := mapped(t, 1, weights)
	handles := m.fill(2)
	engine.Reset(0)
	require.Zero(t, sim.Stat("handles"))
	m.unmap(0, 2, handles[0])
	require.ErrorIs(t, engine.UserMapped().Map(m.at(0), chunk, 0, handles[1], 0), cuda.InvalidValue)
	require.NoError(t, engine.UserMapped().Release(handles[1]))
	handles = m.fill(1)
	cycle(t, engine, vmm.Options{})
	requireFilled(t, m.at(0), chunk, 0)
	m.unmap(0, 1, handles...)

	// Another thread unmaps one while a reset takes the other.
	engine.CheckInvariants(true)
	handles = m.fill(2)
	var unmaps atomic.Int64
	end := at("cuMemUnmap", func() error {
		if unmaps.Add(1) == 1 {
			m.unmap(1, 2)
		}
		return nil
	})
	defer end()
	engine.Reset(0)
	end()
	require.EqualValues(t, 2, unmaps.Load())
	m.unmap(0, 1, handles...)
	require.Zero(t, sim.Stat("handles"))
	m.end()
}

func TestUserMappedAndMargin(t *testing.T) {
	sim, _, engine := simulated(t, 1)
	r := weights
	r.Size, r.Margin = chunk, sim.Stat("total:0")
	_, err := engine.UserMapped().Create(r, cuda.PinnedOn(0))
	require.ErrorIs(t, err, vmm.ErrMargin)
	r.Margin = 0
	r.Device = 7
	_, err = engine.UserMapped().Create(r, cuda.PinnedOn(7))
	require.Error(t, err)
}

// Memory that the driver refuses to release, when its last mapping goes after the release of its handle, is released
// later.
func TestUserMappedReleasedLate(t *testing.T) {
	sim, engine, m := mapped(t, 1, vmm.Request{})
	require.NoError(t, engine.UserMapped().Release(m.create(0)))
	end := at("cuMemRelease", func() error { return cuda.Unknown })
	defer end()
	m.unmap(0, 1)
	engine.FreeDeferred()
	require.EqualValues(t, 1, sim.Stat("handles"))
	end()
	engine.FreeDeferred()
	require.Zero(t, sim.Stat("handles"))
	m.end()
}

// One handle at several addresses is one memory. Pauses leave it alone until it has one address again.
func TestUserMappedAtSeveralAddresses(t *testing.T) {
	sim, driver, engine := simulated(t, 1)
	m := newMapper(t, driver, engine, weights)
	handle := m.create(0)
	m.open(0, 1)
	for n := 1; n < 4; n++ {
		require.NoError(t, engine.UserMapped().Map(m.at(n), chunk, 0, handle, 0))
		require.ErrorIs(t, engine.UserMapped().SetAccess(m.at(n), chunk, onDevice0), vmm.ErrNotOurs)
		require.NoError(t, driver.MemSetAccessOf(m.at(n), chunk, onDevice0))
	}
	fill(m.at(0), chunk, 7)
	requireFilled(t, m.at(3), chunk, 7)
	require.NoError(t, pause(engine, vmm.Options{}))
	require.EqualValues(t, chunk, sim.Stat("used:0"))
	requireFilled(t, m.at(2), chunk, 7)
	require.NoError(t, engine.UserMapped().Unmap(m.at(1), 3*chunk))
	require.NoError(t, pause(engine, vmm.Options{}))
	require.Zero(t, sim.Stat("used:0"))
	require.ErrorIs(t, engine.UserMapped().Map(m.at(1), chunk, 0, handle, 0), cuda.NotSupported)
	require.NoError(t, resume(engine, vmm.Options{}))
	requireFilled(t, m.at(0), chunk, 7)
	require.NoError(t, engine.UserMapped().Map(m.at(1), chunk, 0, handle, 0))
	require.NoError(t, engine.UserMapped().Unmap(m.at(0), 2*chunk))
	require.NoError(t, engine.UserMapped().Release(handle))
	require.Zero(t, sim.Stat("used:0"))
	m.end()
}
