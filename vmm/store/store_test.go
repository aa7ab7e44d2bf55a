package store

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/hermetic"
	"tms/internal/cudasim"
	"tms/vmm/cuda"
)

// kinds are the stores, and the other places of Peer. Each passes the tests of this file.
var kinds = []struct {
	name   string
	target int // of items
	make   func(s *suite) Store
}{
	{"private", -1, func(s *suite) Store { return NewPrivate(s.driver) }},
	{"peer", -1, func(s *suite) Store { return s.newPeer(nil) }},
	{"portable peer", 1, func(s *suite) Store {
		s.job.Portable = true
		return s.newPeer(nil)
	}},
	{"reserved", Reserved, func(s *suite) Store { return s.newPeer(s) }},
	{"disk", -1, func(s *suite) Store {
		s.folder = s.t.TempDir()
		disk := NewDisk(s.driver, s.descriptors, silent)
		require.NoError(s.t, disk.Configure(s.folder, ""))
		return disk
	}},
}

// suite is one store, with two devices.
type suite struct {
	t           *testing.T
	sim         *cudasim.Sim
	driver      *cuda.Driver
	job         Job
	store       Store
	target      int
	descriptors *descriptors.Holder
	folder      string // of Disk
	copied      atomic.Uint64
	before      map[string]uint64
}

// onEach runs a test on each kind of store.
func onEach(t *testing.T, test func(t *testing.T, s *suite)) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Setenv("CUDASIM_SHARED", fmt.Sprint("store-", os.Getpid()))
			s := &suite{t: t, target: kind.target, descriptors: &descriptors.Holder{}}
			var jobs []Job
			s.sim, s.driver, jobs = simulate(t, 2, "2G")
			s.job = jobs[0]
			s.job.Copied = func(bytes uint64) { s.copied.Add(bytes) }
			s.store = kind.make(s)
			s.before = s.held()
			test(t, s)
			s.clean()
		})
	}
}

func (s *suite) newPeer(reserve Reserve) *Peer {
	peer := NewPeer(s.driver, s.descriptors, reserve, NewPrivate(s.driver), func(line string) { s.t.Error(line) })
	peer.chunk = 4 * mib
	return peer
}

// Free, Take and Give make the suite a Reserve, which has as much as is asked for and gives it back to the system.
func (s *suite) Free(int) uint64 { return 1 << 40 }

func (s *suite) Take(node int) (number uint64, err error) {
	descriptor, err := s.driver.MemCreateFile(cuda.HostExtent, cuda.HostExtentOn(node))
	if err != nil {
		return 0, err
	}
	number, err = s.descriptors.Keep(descriptor)
	require.NoError(s.t, unix.Close(descriptor))
	return number, err
}

func (s *suite) Give(_ int, number uint64) error { return s.descriptors.Drop(number) }

// held counts what is taken of the driver and the system.
func (s *suite) held() map[string]uint64 {
	held := map[string]uint64{"descriptors": uint64(s.descriptors.Count())}
	for _, name := range []string{"handles", "reservations", "mappings", "streams", "events", "registered_bytes",
		"pending", "used:0", "used:1"} {
		held[name] = s.sim.Stat(name)
	}
	return held
}

// clean asserts that no more is taken than before, and that no name is in the folder.
func (s *suite) clean() {
	s.t.Helper()
	s.driver.Reclaim.Drain() // the driver may refuse once
	s.driver.Reclaim.Drain()
	require.Equal(s.t, s.before, s.held())
	if s.folder != "" {
		left, err := os.ReadDir(s.folder)
		require.NoError(s.t, err)
		require.Empty(s.t, left)
		require.Empty(s.t, filesIn(s.t, s.folder))
	}
}

// spans maps memory of the device, which is not counted as held.
func (s *suite) spans(sizes ...uint64) []Span {
	s.t.Helper()
	mapped := spans(s.t, s.driver, s.job.Device, sizes...)
	s.before = s.held()
	return mapped
}

func (s *suite) save(spans []Span, kept []Contents) []Contents {
	s.t.Helper()
	contents, err := s.store.Save(s.job, itemsFor(spans, kept, s.target))
	require.NoError(s.t, err)
	return contents
}

// requireBack asserts that a load brings back what fill wrote.
func (s *suite) requireBack(spans []Span, contents []Contents, seed uint64) {
	s.t.Helper()
	wipe(spans)
	require.NoError(s.t, loadAll(s.job, spans, contents))
	requireFilled(s.t, spans, seed)
}

// Saved contents come back, more than once. Kept ones are overwritten where they are, beside new ones.
func TestStoreRoundTrip(t *testing.T) {
	hermetic.Thorough(t)
	onEach(t, func(t *testing.T, s *suite) {
		spans := s.spans(2*mib, 34*mib, 2*mib, 40*mib, 6*mib)
		var kept []Contents
		for cycle := range uint64(3) {
			fill(spans, cycle)
			s.copied.Store(0)
			contents := s.save(spans, kept)
			require.EqualValues(t, 84*mib, s.copied.Load())
			if kept != nil {
				require.Equal(t, kept, contents)
			}
			kept = contents
			s.requireBack(spans, kept, cycle)
			s.requireBack(spans, kept, cycle)
		}
		for i, c := range kept {
			require.Equal(t, spans[i].Size, c.Bytes())
			require.Same(t, s.store, c.Store())
			if _, held := s.store.(Held); held {
				require.Zero(t, c.Host())
			} else {
				require.Equal(t, memoryOf(spans[i]), memoryOf(Span{c.Host(), c.Bytes()}))
			}
		}
		kept[1].Discard()
		kept[1] = nil
		fill(spans, 3)
		both := s.save(spans, kept)
		require.Same(t, kept[0], both[0])
		s.requireBack(spans, both, 3)
		discardAll(both)
	})
}

// A save that is told which parts have changed has all of the span, also what lies across two extents.
func TestStoreOverwritesWhatChanged(t *testing.T) {
	onEach(t, func(t *testing.T, s *suite) {
		spans := s.spans(4*mib, 26*mib)
		fill(spans, 1)
		kept := s.save(spans, nil)
		second := memoryOf(spans[1])
		changed := []Range{{Offset: 0, Size: 2 * mib}, {Offset: 10 * mib, Size: 4 * mib}}
		for _, part := range changed {
			for at := part.Offset; at < part.Offset+part.Size; at += 2048 {
				second[at]++
			}
		}
		wanted := append([]byte{}, second...)
		items := itemsFor(spans, kept, s.target)
		items[0].Parts, items[1].Parts = nil, changed
		s.copied.Store(0)
		contents, err := s.store.Save(s.job, items)
		require.NoError(t, err)
		require.Equal(t, kept, contents)
		if _, is := s.store.(*Disk); !is { // which writes all of a span
			require.EqualValues(t, 6*mib, s.copied.Load())
		}
		wipe(spans)
		require.NoError(t, loadAll(s.job, spans, kept))
		requireFilled(t, spans[:1], 1)
		require.Equal(t, wanted, second)
		discardAll(kept)
	})
}

// Contents that are discarded leave the others as they were, and all memory is back when the last have gone: no later
// than Await returns.
func TestStoreDiscards(t *testing.T) {
	hermetic.Thorough(t)
	onEach(t, func(t *testing.T, s *suite) {
		spans := s.spans(2*mib, 2*mib, 34*mib, 2*mib, 66*mib)
		fill(spans, 1)
		contents := s.save(spans, nil)
		for len(contents) > 1 {
			last := contents[len(contents)-1]
			last.Discard()
			last.Await(time.Time{})
			contents = contents[:len(contents)-1]
			s.requireBack(spans[:len(contents)], contents, 1)
		}
		discardAll(contents)
		contents[0].Await(time.Time{})
		require.Equal(t, s.before, s.held())
	})
}

// A held store gives contents to host memory, and has them still.
func TestStoreGives(t *testing.T) {
	onEach(t, func(t *testing.T, s *suite) {
		held, is := s.store.(Held)
		if !is {
			return
		}
		spans := s.spans(2*mib, 10*mib)
		fill(spans, 1)
		contents := s.save(spans, nil)
		copies, err := NewPrivate(s.driver).Save(s.job, itemsFor(spans, nil, -1))
		require.NoError(t, err)
		for _, c := range copies {
			clear(memoryOf(Span{c.Host(), c.Bytes()}))
		}
		require.NoError(t, held.Give(s.job, contents, copies))
		for i, c := range copies {
			require.Equal(t, memoryOf(spans[i]), memoryOf(Span{c.Host(), c.Bytes()}))
		}
		s.requireBack(spans, contents, 1)
		discardAll(append(contents, copies...))
	})
}

// Every driver call fails once, at every place where it is made: a Save then returns correct contents, or an error and
// nothing; a Load returns an error, or restores the contents, which stay valid; nothing is left.
func TestStoreSweep(t *testing.T) {
	calls := []string{
		"cuDeviceGetCount", "cuDeviceCanAccessPeer", "cuDeviceTotalMem", "cuMemGetAllocationGranularity",
		"cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap",
		"cuMemSetAccess", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemcpyDtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemHostRegister", "cuMemHostUnregister", "cuStreamCreate",
		"cuStreamSynchronize", "cuStreamDestroy", "cuCtxPushCurrent", "cuCtxPopCurrent",
	}
	onEach(t, func(t *testing.T, s *suite) {
		if peer, is := s.store.(*Peer); is {
			peer.warn = silent // of what goes to the host
		}
		sizes := []uint64{2 * mib, 4 * mib, 2 * mib} // two extents
		if _, is := s.store.(*Private); is {
			sizes = []uint64{2 * mib, 40 * mib} // two registrations
		}
		spans := s.spans(sizes...)
		every, least := 1, uint64(30)
		if hermetic.Quick {
			every, least = 4, 10
		}
		for _, call := range calls {
			for nth, fired := 1, true; fired; nth += every {
				fired = s.failing(spans, call, nth)
			}
		}
		require.Greater(t, s.sim.FailuresFired(), least)
	})
}

// failing goes through the life of contents while the nth of the calls fails, and reports whether it failed.
func (s *suite) failing(spans []Span, call string, nth int) bool {
	s.t.Helper()
	before := s.sim.FailuresFired()
	s.sim.Fail(call, nth, int(cuda.Unknown))
	var kept []Contents
	for cycle := range uint64(2) {
		fill(spans, cycle)
		contents, err := s.store.Save(s.job, itemsFor(spans, kept, s.target))
		if err != nil {
			require.ErrorIs(s.t, err, cuda.Unknown, "%s %d", call, nth)
			require.Nil(s.t, contents)
			contents = s.save(spans, kept)
		}
		kept = contents
		wipe(spans)
		if err := loadAll(s.job, spans, kept); err != nil {
			require.ErrorIs(s.t, err, cuda.Unknown, "%s %d", call, nth)
			require.NoError(s.t, loadAll(s.job, spans, kept), "once more after %s %d", call, nth)
		}
		requireFilled(s.t, spans, cycle)
	}
	discardAll(kept)
	s.clean()
	s.sim.ClearFailures()
	return s.sim.FailuresFired() > before
}
