package streams_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/streams"
)

const (
	mib   = 1 << 20
	total = 64 << 30
)

// source has events of streams that work until the test completes them.
type source struct {
	*pool.Range
	busy   map[pool.Stream]bool
	events map[pool.Event]pool.Stream
	last   pool.Event
	refuse error // what Record answers
}

func newSource() *source {
	return &source{pool.NewRange(0x7f00_0000_0200, total), map[pool.Stream]bool{}, map[pool.Event]pool.Stream{}, 0, nil}
}

func (s *source) Record(stream pool.Stream) (pool.Event, error) {
	if s.refuse != nil {
		return 0, s.refuse
	}
	s.last++
	s.events[s.last] = stream
	return s.last, nil
}

func (s *source) Query(event pool.Event) (bool, error) { return !s.busy[s.events[event]], nil }

func (s *source) Synchronize(event pool.Event) error {
	s.busy[s.events[event]] = false
	return nil
}

func (s *source) Destroy(event pool.Event) error {
	delete(s.events, event)
	return nil
}

func (*source) Reserve(*pool.Room) bool     { return true }
func (*source) Coalesces(_, _ uintptr) bool { return true }

func (s *source) Memory() (free, all uint64, err error) { return total, total, nil }

func newPool(t *testing.T, kind, options string, s pool.DeviceSource) streams.Streamed {
	t.Helper()
	p, err := streams.New(s, func(source pool.Source) (pool.Pool, error) {
		parsed, err := pool.ParseOptions(options)
		if err != nil {
			return nil, err
		}
		return kinds.New(kind, source, parsed)
	})
	require.NoError(t, err)
	return p
}

// each runs a test with every kind.
func each(t *testing.T, test func(t *testing.T, p streams.Streamed, s *source)) {
	for _, kind := range kinds.Names() {
		t.Run(kind, func(t *testing.T) {
			s := newSource()
			p := newPool(t, kind, "", s)
			test(t, p, s)
			require.NoError(t, p.Destroy())
			require.Zero(t, s.Held())
			require.Empty(t, s.events)
		})
	}
}

func malloc(t *testing.T, p pool.Pool, size uint64, stream pool.Stream) uintptr {
	t.Helper()
	b, err := p.Malloc(size, stream)
	require.NoError(t, err)
	return b.Address
}

func TestMemoryOfOneStreamIsNotForAnother(t *testing.T) {
	each(t, func(t *testing.T, p streams.Streamed, s *source) {
		first := malloc(t, p, mib, 1)
		require.NoError(t, p.Free(first))
		if s.Held() > 0 { // naive gives it back, and that waits for the device
			require.NotEqual(t, first, malloc(t, p, mib, 2))
		}
		require.Equal(t, first, malloc(t, p, mib, 1))
	})
}

func TestABlockWaitsForTheStreamsThatUsedIt(t *testing.T) {
	each(t, func(t *testing.T, p streams.Streamed, s *source) {
		first := malloc(t, p, mib, 1)
		require.NoError(t, p.RecordStream(first, 2))
		require.NoError(t, p.RecordStream(first, 1), "its own")
		require.NoError(t, p.RecordStream(0, 2))
		require.ErrorIs(t, p.RecordStream(first+1, 2), pool.ErrInvalidAddress)
		s.busy[2] = true
		require.NoError(t, p.Free(first))
		require.ErrorIs(t, p.Free(first), pool.ErrInvalidAddress)
		require.NotEqual(t, first, malloc(t, p, mib, 1), "stream 2 is not done")
		s.busy[2] = false
		require.Equal(t, first, malloc(t, p, mib, 1))
	})
}

func TestAnEventThatCannotBeRecorded(t *testing.T) {
	each(t, func(t *testing.T, p streams.Streamed, s *source) {
		first := malloc(t, p, mib, 1)
		require.NoError(t, p.RecordStream(first, 2))
		s.refuse = pool.ErrCapturing
		require.ErrorIs(t, p.Free(first), pool.ErrCapturing)
		s.refuse = nil
		require.NoError(t, p.Free(first), "it was still live")
	})
}

func TestTrimWaits(t *testing.T) {
	each(t, func(t *testing.T, p streams.Streamed, s *source) {
		first := malloc(t, p, mib, 1)
		require.NoError(t, p.RecordStream(first, 2))
		s.busy[2] = true
		require.NoError(t, p.Free(first))
		reserved := p.Stats().Reserved
		require.NotZero(t, reserved)
		freed, err := p.Trim()
		require.NoError(t, err)
		require.Equal(t, reserved, freed)
		require.Zero(t, p.Stats().Reserved)
	})
}

// Memory that a graph used is its own until the graph is released, whatever is freed.
func TestGraphs(t *testing.T) {
	id := pool.GraphPoolID{7, 8}
	captured := func(stream pool.Stream) bool { return stream == 5 }
	each(t, func(t *testing.T, p streams.Streamed, s *source) {
		outside := malloc(t, p, mib, 5)
		require.NoError(t, p.Free(outside))
		require.ErrorIs(t, p.EndAllocateToPool(id), pool.ErrGraphPool)
		require.ErrorIs(t, p.ReleasePool(id), pool.ErrGraphPool)
		require.NoError(t, p.BeginAllocateToPool(id, captured))
		require.ErrorIs(t, p.BeginAllocateToPool(id, captured), pool.ErrGraphPool)
		_, err := p.Trim()
		require.ErrorIs(t, err, pool.ErrCapturing)
		inside := malloc(t, p, mib, 5)
		require.NoError(t, p.RecordStream(inside, 9))
		s.refuse = pool.ErrCapturing // no event may be recorded now
		require.NoError(t, p.Free(inside))
		other := malloc(t, p, mib, 6)
		require.NotEqual(t, inside, other)
		s.refuse = nil
		require.ErrorIs(t, p.ReleasePool(id), pool.ErrGraphPool, "it is being captured")
		require.NoError(t, p.EndAllocateToPool(id))

		require.NoError(t, p.Free(other))
		again := malloc(t, p, mib, 5)
		require.NotEqual(t, inside, again)
		require.NoError(t, p.Free(again))
		_, err = p.Trim()
		require.NoError(t, err)
		require.NotZero(t, s.Held(), "the graph may be replayed")
		require.NotEqual(t, inside, malloc(t, p, mib, 5))

		require.NoError(t, p.BeginAllocateToPool(id, captured), "another graph shares the pool")
		require.Equal(t, inside, malloc(t, p, mib, 5))
		require.NoError(t, p.EndAllocateToPool(id))
		require.NoError(t, p.Free(inside))
		require.NoError(t, p.ReleasePool(id))
		require.NoError(t, p.ReleasePool(id))
		require.ErrorIs(t, p.ReleasePool(id), pool.ErrGraphPool)
		before := p.Stats().Reserved
		_, err = p.Trim()
		require.NoError(t, err)
		require.Less(t, p.Stats().Reserved, before)
	})
}

func TestMemoryFraction(t *testing.T) {
	each(t, func(t *testing.T, p streams.Streamed, s *source) {
		for _, wrong := range []float64{-0.1, 1.1} {
			require.ErrorIs(t, p.SetMemoryFraction(wrong), pool.ErrOption)
		}
		require.NoError(t, p.SetMemoryFraction(0))
		_, err := p.Malloc(mib, 1)
		require.ErrorIs(t, err, pool.ErrOutOfMemory)
		require.NoError(t, p.SetMemoryFraction(1))
		malloc(t, p, mib, 1)
	})
}

// Before a stream is refused memory, other streams' pools give back what they can spare.
func TestShortage(t *testing.T) {
	s := newSource()
	p := newPool(t, "buddy", "capacity=16MiB", s)
	require.NoError(t, p.SetMemoryFraction(float64(20*mib)/total))
	first := malloc(t, p, mib, 1)
	_, err := p.Malloc(mib, 2)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.NoError(t, p.Free(first))
	second := malloc(t, p, mib, 2)
	require.NoError(t, p.Free(second))
	require.NoError(t, p.Destroy())
	require.EqualValues(t, 1, p.Stats().Failures)
}
