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

// of notes a call with an event, and returns what that has recorded.
func (d *device) of(call string, event pool.Event) (recorded, error) {
	d.calls = append(d.calls, call)
	e, found := d.events[event]
	if !found {
		return e, errors.New("no such event")
	}
	return e, d.refuseQuery
}

func (d *device) Query(event pool.Event) (bool, error) {
	e, err := d.of("query", event)
	return e.number <= d.completed[e.stream], err
}

func (d *device) Synchronize(event pool.Event) error {
	e, err := d.of("synchronize", event)
	if err == nil {
		d.completed[e.stream] = max(d.completed[e.stream], e.number)
	}
	return err
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

// bare hides what a device is besides a source.
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
	return p.(*Pool)
}

// malloc returns the address of a block; it must succeed.
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

// trim asserts that a Trim gives back that number of bytes.
func (b bench) trim(bytes uint64, why ...any) {
	b.t.Helper()
	released, err := b.Trim()
	require.NoError(b.t, err)
	require.Equal(b.t, bytes, released, why...)
}

func (b bench) detail() *Detail { return b.Stats().Detail.(*Detail) }

// check walks all metadata: blocks tile their segments, no two neighbours are free, exactly the free ones are in
// their lists and the live ones in the table, and the counters are the sums.
func check(t *testing.T, p *Pool) {
	t.Helper()
	var want struct{ allocated, active, split, requested, blocks, splits, free int64 }
	for _, r := range p.table.Regions() {
		end, before := r.Address, none
		for h := r.First; h != none; h = p.at(h).Next {
			b := p.at(h)
			require.Equal(t, before, b.Previous)
			before = h
			require.Equal(t, end, b.Address)
			require.Positive(t, b.Size)
			require.Zero(t, b.Size%minBlock)
			require.Equal(t, p.at(r.First).Own.list, b.Own.list)
			end = b.End()
			if b.Next != none {
				require.Equal(t, h, p.at(b.Next).Previous)
				require.False(t, p.table.IsFree(h) && p.table.IsFree(b.Next), "free neighbours at %#x", b.Address)
			}
			if found, err := p.table.Find(b.Address); b.Taken() && !b.Own.pending {
				require.NoError(t, err)
				require.Equal(t, h, found)
				want.allocated += int64(b.Size)
				want.blocks++
			} else {
				require.Error(t, err)
			}
			if !b.Taken() {
				require.False(t, b.Own.pending)
				want.free++
				if !b.Whole() {
					want.split += int64(b.Size)
					want.splits++
				}
			} else {
				want.active += int64(b.Size)
				want.requested += int64(b.Requested)
			}
		}
		require.Equal(t, r.Address+uintptr(r.Size), end)
	}
	pools := []*blockPool{&p.smallPool, &p.largePool}
	for _, g := range p.Private() {
		pools = append(pools, &g.small, &g.large)
	}
	free := int64(0)
	for _, from := range pools {
		for i, l := range from.lists {
			require.Same(t, from, l.pool)
			require.Same(t, l, p.lists[l.number])
			require.True(t, i == 0 || from.lists[i-1].stream < l.stream)
			for e, found := l.free.Ceiling(0); found; e, found = l.free.Ceiling(e.Key + 1) {
				b := p.at(handle(e.Value))
				require.False(t, b.Taken())
				require.Same(t, l, p.listOf(b))
				require.Equal(t, b.Key(), e.Key)
				free++
			}
		}
	}
	d, stats := p.detail(), p.table.Stats()
	require.Equal(t, want.free, free)
	require.Equal(t, uint64(want.blocks), stats.Blocks)
	require.Equal(t, want.blocks, d.Allocation.All.Current)
	require.Equal(t, uint64(want.allocated), stats.Live)
	require.Equal(t, want.allocated, d.AllocatedBytes.All.Current)
	require.Equal(t, want.active, d.ActiveBytes.All.Current)
	require.Equal(t, want.requested, d.RequestedBytes.All.Current)
	require.Equal(t, stats.Reserved, p.reserved())
	require.Equal(t, want.split, d.InactiveSplitBytes.All.Current)
	require.Equal(t, want.splits, d.InactiveSplit.All.Current)
	require.Equal(t, int64(stats.Segments), d.Segment.All.Current)
}
