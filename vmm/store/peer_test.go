package store

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/cudasim"
	"tms/vmm/cuda"
)

// peers is simulated devices, each with a context, and a Peer that falls back to the host.
type peers struct {
	t       *testing.T
	sim     *cudasim.Sim
	driver  *cuda.Driver
	jobs    []Job
	private *Private
	peer    *Peer
	notes   []string
	copied  atomic.Uint64
	before  map[string]uint64

	descriptors *descriptors.Holder
}

func newPeers(t *testing.T, devices int, memory string) *peers {
	t.Helper()
	sim, driver, jobs := simulate(t, devices, memory)
	p := &peers{t: t, sim: sim, driver: driver, jobs: jobs, private: NewPrivate(driver)}
	p.peer = NewPeer(driver, &descriptors.Holder{}, nil, p.private, func(note string) { p.notes = append(p.notes, note) })
	p.peer.chunk = testChunk
	for ordinal := range jobs {
		jobs[ordinal].Copied = func(bytes uint64) { p.copied.Add(bytes) }
	}
	p.remember()
	t.Cleanup(p.clean)
	return p
}

func (p *peers) held() map[string]uint64 {
	held := map[string]uint64{}
	for _, name := range []string{"handles", "reservations", "mappings", "streams", "events", "registered_bytes",
		"pending"} {
		held[name] = p.sim.Stat(name)
	}
	for device := range p.jobs {
		name := fmt.Sprintf("used:%d", device)
		held[name] = p.sim.Stat(name)
	}
	return held
}

func (p *peers) remember() { p.before = p.held() }

// clean asserts that nothing is held beyond what the test's own spans take.
func (p *peers) clean() {
	p.t.Helper()
	p.driver.Reclaim.Drain()
	require.Equal(p.t, p.before, p.held())
}

// requireBack asserts that a load brings back what Fill wrote.
func (p *peers) requireBack(job Job, spans []Span, contents []Contents, seed uint64) {
	p.t.Helper()
	wipe(spans)
	require.NoError(p.t, loadAll(job, spans, contents))
	requireFilled(p.t, spans, seed)
}

// spans maps memory of a device.
func (p *peers) spans(device int, sizes ...uint64) []Span {
	p.t.Helper()
	spans := spans(p.t, p.driver, device, sizes...)
	p.remember()
	return spans
}

// occupy takes memory of a device until so much is free.
func (p *peers) occupy(device int, free uint64) {
	p.t.Helper()
	_, err := p.driver.MemCreate(p.sim.Stat(fmt.Sprintf("free:%d", device))-free, device)
	require.NoError(p.t, err)
	p.remember()
}

func (p *peers) save(job Job, items []Item) []Contents {
	p.t.Helper()
	contents, err := p.peer.Save(job, items)
	require.NoError(p.t, err)
	p.driver.Reclaim.Drain() // the reserve has gone back
	return contents
}

// where counts the contents on a peer, and those on the host.
func (p *peers) where(contents []Contents) (peer, host int) {
	for _, c := range contents {
		switch c.Store() {
		case p.peer:
			peer++
		case p.private:
			host++
		}
	}
	return peer, host
}

const (
	stayFree  = 256 * mib // on devices of up to 12.5 GiB
	testChunk = 16 * mib  // so that chunks are many and the memory touched little
)

func TestPeerNeedsNoContextThere(t *testing.T) {
	p := newPeers(t, 2, "2G")
	require.EqualValues(t, 2, p.sim.Stat("contexts"))
	spans := p.spans(0, 2*mib)
	for _, name := range []string{"cuDevicePrimaryCtxRetain", "cuCtxCreate"} {
		calls := p.sim.Stat("calls:" + name)
		discardAll(p.save(p.jobs[0], itemsFor(spans, nil, 1)))
		require.Equal(t, calls, p.sim.Stat("calls:"+name))
	}
}

func TestPeerSharesChunks(t *testing.T) {
	p := newPeers(t, 2, "2G")
	job := p.jobs[0]
	spans := p.spans(0, slices.Repeat([]uint64{2 * mib}, 10)...)
	fill(spans, 1)
	handles := p.sim.Stat("handles")
	contents := p.save(job, itemsFor(spans, nil, 1))
	require.EqualValues(t, 2, p.sim.Stat("handles")-handles, "20 MiB in two chunks")
	discardAll(contents[1:])
	p.driver.Reclaim.Drain()
	require.EqualValues(t, testChunk, p.sim.Stat("used:1"))
	p.requireBack(job, spans[:1], contents[:1], 1)
	discardAll(contents[:1])
}

func TestPeerFallsBackWithANote(t *testing.T) {
	for _, c := range []struct {
		name, peers     string
		devices, target int
		full            bool
		note            string
	}{
		{"one device", "1", 1, -1, false, "device 0 has peer access to no other"},
		{"no such device", "1", 2, 5, false, "device 5: cuDeviceCanAccessPeer: invalid device ordinal (101)"},
		{"itself", "1", 2, 0, false, "device 0 is the device to free"},
		{"no peer access", "0", 2, 1, false, "device 0 has no peer access to device 1"},
		{"no peer access to any", "0", 3, -1, false, "device 0 has peer access to no other"},
		{"full", "1", 2, 1, true, "device 1 has no room"},
		{"all full", "1", 2, -1, true, "device 1 has no room"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("CUDASIM_PEERS", c.peers)
			p := newPeers(t, c.devices, "1G")
			if c.full {
				p.occupy(1, stayFree+2*mib)
			}
			spans := p.spans(0, 4*mib, 6*mib)
			fill(spans, 1)
			var kept []Contents
			for range 3 {
				kept = p.save(p.jobs[0], itemsFor(spans, kept, c.target))
				require.Len(t, p.notes, 1)
				require.True(t, strings.HasPrefix(p.notes[0], "contents: "+c.note), p.notes[0])
				require.Contains(t, p.notes[0], "; they wait in the process's own host memory instead")
				_, host := p.where(kept)
				require.Equal(t, 2, host)
				p.requireBack(p.jobs[0], spans, kept, 1)
			}
			discardAll(kept)
			discardAll(p.save(p.jobs[0], itemsFor(spans, nil, c.target)))
			require.Len(t, p.notes, 1, "once for every reason")
		})
	}
}

func TestPeerTakesWhatThereIsRoomFor(t *testing.T) {
	p := newPeers(t, 2, "2G")
	job := p.jobs[0]
	p.occupy(1, stayFree+testChunk+6*mib)
	spans := p.spans(0, 10*mib, 8*mib, 4*mib, 4*mib)
	fill(spans, 1)
	contents := p.save(job, itemsFor(spans, nil, 1))
	peer, host := p.where(contents)
	require.Equal(t, []int{2, 2}, []int{peer, host}, "10 and 4 MiB in a testChunk of 16")
	require.Same(t, p.peer, contents[0].Store())
	require.Same(t, p.peer, contents[2].Store())
	require.Equal(t,
		[]string{"contents: device 1 has no room; they wait in the process's own host memory instead"}, p.notes)
	require.GreaterOrEqual(t, p.sim.Stat("free:1"), uint64(stayFree))

	// The mixed contents are overwritten where they are.
	fill(spans, 2)
	require.Equal(t, contents, p.save(job, itemsFor(spans, contents, 1)))
	p.requireBack(job, spans, contents, 2)
	require.EqualValues(t, testChunk, p.sim.Stat("used:1")-p.before["used:1"])
	discardAll(contents)
}

func TestPeerGivesBackWhatNothingFitsInto(t *testing.T) {
	p := newPeers(t, 2, "1G")
	p.occupy(1, stayFree+3*testChunk)
	spans := p.spans(0, 10*mib, 90*mib)
	contents := p.save(p.jobs[0], itemsFor(spans, nil, 1))
	peer, host := p.where(contents)
	require.Equal(t, []int{1, 1}, []int{peer, host})
	require.EqualValues(t, testChunk, p.sim.Stat("used:1")-p.before["used:1"])
	discardAll(contents)
}

// What was discarded is free for the next Save, even where the driver refused at first.
func TestPeerFindsDiscardedMemoryAgain(t *testing.T) {
	p := newPeers(t, 2, "1G")
	p.occupy(1, stayFree+2*testChunk)
	spans := p.spans(0, 2*testChunk)
	for range 3 {
		contents := p.save(p.jobs[0], itemsFor(spans, nil, 1))
		require.Same(t, p.peer, contents[0].Store())
		p.sim.Fail("cuMemUnmap", 1, int(cuda.Unknown))
		discardAll(contents)
		contents[0].Await(time.Time{}) // does not have it try again
		// One testChunk was refused, and tried again already if the other came later.
		require.GreaterOrEqual(t, p.sim.Stat("free:1"), uint64(stayFree+testChunk))
	}
	require.Empty(t, p.notes)
}

func TestPeerSpreads(t *testing.T) {
	p := newPeers(t, 4, "1G")
	job := p.jobs[2]
	p.occupy(3, stayFree+testChunk) // the next of device 2
	spans := p.spans(2, 6*mib, 6*mib, 6*mib, 6*mib)
	fill(spans, 1)
	free := p.sim.Stat("free:3")
	contents := p.save(job, itemsFor(spans, nil, -1))
	peer, _ := p.where(contents)
	require.Equal(t, 4, peer)
	require.Empty(t, p.notes, "nothing is on the host")
	require.EqualValues(t, testChunk, free-p.sim.Stat("free:3"))
	require.EqualValues(t, 12*mib, p.sim.Stat("used:0"))
	require.Zero(t, p.sim.Stat("used:1"))
	p.requireBack(job, spans, contents, 1)
	discardAll(contents)
}

func TestPeerTargetsDiffer(t *testing.T) {
	p := newPeers(t, 3, "1G")
	spans := p.spans(0, 2*mib, 4*mib, 6*mib)
	fill(spans, 1)
	items := itemsFor(spans, nil, 2)
	items[0].Target = 1
	items[2].Target = 7
	contents := p.save(p.jobs[0], items)
	require.EqualValues(t, 2*mib, p.sim.Stat("used:1"))
	require.EqualValues(t, 4*mib, p.sim.Stat("used:2"))
	require.Same(t, p.private, contents[2].Store())
	require.Len(t, p.notes, 1)
	p.requireBack(p.jobs[0], spans, contents, 1)
	discardAll(contents)
}

// A program's devices keep contents for one another, at once.
func TestPeerOfEachOther(t *testing.T) {
	p := newPeers(t, 2, "2G")
	spans := [][]Span{p.spans(0, 8*mib, 2*mib), p.spans(1, 2*mib, 20*mib)}
	var both sync.WaitGroup
	errs := make([]error, 2)
	for device := range 2 {
		both.Go(func() {
			for cycle := range uint64(5) {
				fill(spans[device], cycle)
				contents, err := p.peer.Save(p.jobs[device], itemsFor(spans[device], nil, 1-device))
				if err == nil {
					wipe(spans[device])
					err = loadAll(p.jobs[device], spans[device], contents)
				}
				if err != nil {
					errs[device] = err
					return
				}
				discardAll(contents)
			}
		})
	}
	both.Wait()
	require.Equal(t, make([]error, 2), errs)
	for device := range 2 {
		requireFilled(t, spans[device], 4)
	}
	require.Empty(t, p.notes)
}

// newPortable is two peers whose job is portable: what they keep lives by its descriptors.
func newPortable(t *testing.T) *peers {
	t.Helper()
	t.Setenv("CUDASIM_SHARED", fmt.Sprint("peers-", os.Getpid()))
	p := newPeers(t, 2, "2G")
	p.jobs[0].Portable, p.descriptors = true, &descriptors.Holder{}
	p.peer.Descriptors = p.descriptors
	return p
}

// Between a Save and a Load, and after each, nothing is mapped, and no handle is held.
func TestPeerPortableContentsAreMappedForCopiesAlone(t *testing.T) {
	p := newPortable(t)
	spans := p.spans(0, 10*mib, 30*mib, 2*mib)
	unmapped := func() {
		t.Helper()
		for _, name := range []string{"handles", "mappings"} {
			require.Equal(t, p.before[name], p.sim.Stat(name), name)
		}
	}
	for cycle := range uint64(2) {
		fill(spans, cycle)
		contents := p.save(p.jobs[0], itemsFor(spans, nil, 1))
		peer, _ := p.where(contents)
		require.Equal(t, 3, peer)
		unmapped()
		require.EqualValues(t, 42*mib, p.sim.Stat("used:1"), "three chunks")
		p.requireBack(p.jobs[0], spans, contents, cycle)
		unmapped()
		fill(spans, cycle+7)
		require.Equal(t, contents, p.save(p.jobs[0], itemsFor(spans, contents, 1)))
		unmapped()
		p.requireBack(p.jobs[0], spans[:2], contents[:2], cycle+7)
		discardAll(contents)
		p.clean()
	}
	require.Zero(t, p.descriptors.Count())

	p.descriptors.Room = func(int, int) error { return unix.EMFILE }
	contents := p.save(p.jobs[0], itemsFor(spans, nil, 1))
	_, host := p.where(contents)
	require.Equal(t, 3, host)
	require.Equal(t,
		[]string{"contents: device 1: too many open files; they wait in the process's own host memory instead"},
		p.notes)
	discardAll(contents)
}
