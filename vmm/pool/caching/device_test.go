package caching

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30

	base = 0x7f00_0000_0000
)

// device is a source with memory and events, whose streams stand still until they are completed.
type device struct {
	*pool.Range
	capacity, held uint64

	refuse, refuseFree, refuseRecord, refuseQuery, refuseMemory error

	recorded, completed map[pool.Stream]int
	events              map[pool.Event]recorded
	made                pool.Event
	calls               []string // of events
}

type recorded struct {
	stream pool.Stream
	number int
}

func newDevice(capacity uint64) *device {
	return &device{
		Range: pool.NewRange(base, capacity), capacity: capacity,
		recorded: map[pool.Stream]int{}, completed: map[pool.Stream]int{}, events: map[pool.Event]recorded{},
	}
}

func (d *device) Allocate(size uint64) (uintptr, error) {
	if d.refuse != nil {
		return 0, d.refuse
	}
	address, err := d.Range.Allocate(size)
	if err == nil {
		d.held += size
	}
	return address, err
}

func (d *device) Free(address uintptr, size uint64) error {
	if d.refuseFree != nil {
		return d.refuseFree
	}
	err := d.Range.Free(address, size)
	if err == nil {
		d.held -= size
	}
	return err
}

func (d *device) Memory() (free, total uint64, err error) {
	return d.capacity - d.held, d.capacity, d.refuseMemory
}

func (d *device) Record(stream pool.Stream) (pool.Event, error) {
	d.calls = append(d.calls, "record")
	if d.refuseRecord != nil && len(d.calls)%2 == 0 { // the second of two
		return 0, d.refuseRecord
	}
	d.made++
	d.recorded[stream]++
	d.events[d.made] = recorded{stream, d.recorded[stream]}
	return d.made, nil
}

func (d *device) Query(event pool.Event) (bool, error) {
	d.calls = append(d.calls, "query")
	e, found := d.events[event]
	if !found {
		return false, errors.New("no such event")
	}
	return e.number <= d.completed[e.stream], d.refuseQuery
}

func (d *device) Synchronize(event pool.Event) error {
	d.calls = append(d.calls, "synchronize")
	e, found := d.events[event]
	if !found {
		return errors.New("no such event")
	}
	if d.refuseQuery == nil {
		d.completed[e.stream] = max(d.completed[e.stream], e.number)
	}
	return d.refuseQuery
}

func (d *device) Destroy(event pool.Event) error {
	if _, found := d.events[event]; !found {
		return errors.New("no such event")
	}
	delete(d.events, event)
	return nil
}

// complete lets a stream finish what it holds.
func (d *device) complete(stream pool.Stream) { d.completed[stream] = d.recorded[stream] }

// bare hides what a device is beside a source.
type bare struct{ device *device }

func (b bare) Allocate(size uint64) (uintptr, error)   { return b.device.Allocate(size) }
func (b bare) Free(address uintptr, size uint64) error { return b.device.Free(address, size) }

// bench is a pool over a device, for tests that follow it closely.
type bench struct {
	*Pool
	t      *testing.T
	device *device
}

func newBench(t *testing.T, capacity uint64, options string) bench {
	t.Helper()
	d := newDevice(capacity)
	return bench{newPool(t, d, options), t, d}
}

func newPool(t *testing.T, source pool.Source, options string) *Pool {
	t.Helper()
	parsed, err := pool.ParseOptions(options)
	require.NoError(t, err)
	p, err := New(source, parsed)
	require.NoError(t, err)
	return p
}

// malloc returns the address of a block that must be had.
func (b bench) malloc(size uint64, stream pool.Stream) uintptr {
	b.t.Helper()
	block, err := b.Malloc(size, stream)
	require.NoError(b.t, err)
	check(b.t, b.Pool)
	return block.Address
}

func (b bench) free(addresses ...uintptr) {
	b.t.Helper()
	for _, address := range addresses {
		require.NoError(b.t, b.Free(address))
		check(b.t, b.Pool)
	}
}

func (b bench) snapshot() []Segment { return b.Snapshot().([]Segment) }

func (b bench) detail() *Detail { return b.Stats().Detail.(*Detail) }

// check walks all metadata: blocks tile their segments, no two neighbours are free, every free block
// is in its bins and every live one in the index, and the counters are the sums.
func check(t *testing.T, p *Pool) {
	t.Helper()
	var want struct{ allocated, active, reserved, split, requested, blocks, splits, free int64 }
	known, segments := 1, int64(0) // none is known
	for h := p.spare; h != none; h = p.at(h).next {
		require.Zero(t, p.at(h).size)
		known++
	}
	for head := range p.heads {
		segments++
		end := p.at(head).address
		for h := head; h != none; h = p.at(h).next {
			known++
			b := p.at(h)
			require.Equal(t, head, p.head(h))
			require.Equal(t, end, b.address)
			require.Positive(t, b.size)
			require.Zero(t, b.size%minBlock)
			require.Equal(t, p.at(head).shelf, b.shelf)
			require.False(t, b.free && b.allocated)
			end += uintptr(b.size)
			want.reserved += int64(b.size)
			if b.next != none {
				require.Equal(t, h, p.at(b.next).previous)
				require.False(t, b.free && p.at(b.next).free, "free neighbours at %#x", b.address)
			}
			if found, live := p.live.Find(b.address); b.allocated {
				require.Equal(t, h, found)
				want.allocated += int64(b.size)
				want.blocks++
			} else {
				require.False(t, live)
			}
			if b.free {
				want.free++
				if b.split() {
					want.split += int64(b.size)
					want.splits++
				}
			} else {
				want.active += int64(b.size)
				want.requested += int64(b.requested)
			}
		}
	}
	pools := []*blockPool{&p.small, &p.large}
	for _, g := range p.graphs {
		pools = append(pools, &g.small, &g.large)
	}
	free := int64(0)
	for _, from := range pools {
		for i, s := range from.shelves {
			require.Same(t, from, s.pool)
			require.Same(t, s, p.shelves[s.number])
			require.True(t, i == 0 || from.shelves[i-1].stream < s.stream)
			for key, h := range s.free.From(0) {
				b := p.at(handle(h))
				require.True(t, b.free)
				require.Same(t, s, p.shelfOf(b))
				require.Equal(t, b.key(), key)
				free++
			}
		}
	}
	all := &p.counters.all
	require.Equal(t, want.free, free)
	require.Equal(t, want.blocks, int64(p.live.Len()))
	require.Equal(t, len(p.blocks), known)
	require.Equal(t, want.blocks, all.allocation.Current)
	require.Equal(t, want.allocated, all.allocatedBytes.Current)
	require.Equal(t, want.active, all.activeBytes.Current)
	require.Equal(t, want.requested, all.requestedBytes.Current)
	require.Equal(t, want.reserved, all.reservedBytes.Current)
	require.Equal(t, want.split, all.inactiveSplitBytes.Current)
	require.Equal(t, want.splits, all.inactiveSplit.Current)
	require.Equal(t, segments, all.segment.Current)
}
