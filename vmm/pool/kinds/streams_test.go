package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/streams"
)

// eventful is a Source with events, of streams that are done with their work at once unless they are busy.
type eventful struct {
	*Source
	busy   map[pool.Stream]bool
	events map[pool.Event]pool.Stream
	last   pool.Event
	refuse error // what Record answers
}

func newEventful(source *Source) *eventful {
	return &eventful{Source: source, busy: map[pool.Stream]bool{}, events: map[pool.Event]pool.Stream{}}
}

func (s *eventful) Record(stream pool.Stream) (pool.Event, error) {
	if s.refuse != nil {
		return 0, s.refuse
	}
	s.last++
	s.events[s.last] = stream
	return s.last, nil
}

func (s *eventful) Query(event pool.Event) (bool, error) { return !s.busy[s.events[event]], nil }

func (s *eventful) Synchronize(event pool.Event) error {
	s.busy[s.events[event]] = false
	return nil
}

func (s *eventful) Destroy(event pool.Event) error {
	delete(s.events, event)
	return nil
}

func (*eventful) Memory() (free, all uint64, err error) { return capacity, capacity, nil }

func newStreamed(source *eventful, kind, settings string) (streams.Streamed, error) {
	return streams.New(source, func(source pool.Source) (pool.Pool, error) { return construct(kind, source, settings) })
}

func TestEveryKindConformsWithAPoolForEachStream(t *testing.T) {
	for _, v := range variants {
		if v.options != "" {
			continue
		}
		traits := v.traits
		traits.StreamOrdered = traits.Kind != "naive" // naive's frees wait for the device
		t.Run(traits.Kind, func(t *testing.T) {
			conforms(t, func(under pool.Source) (pool.Pool, error) {
				return newStreamed(newEventful(under.(*Source)), traits.Kind, "")
			}, traits)
		})
	}
}

// streamed is a pool for several streams.
type streamed struct {
	streams.Streamed
	t      *testing.T
	source *eventful
}

// eachStreamed runs a test with every kind.
func eachStreamed(t *testing.T, test func(t *testing.T, p streamed)) {
	for _, kind := range kinds.Names() {
		t.Run(kind, func(t *testing.T) {
			s := newEventful(NewSource(capacity))
			p, err := newStreamed(s, kind, "")
			require.NoError(t, err)
			test(t, streamed{p, t, s})
			require.NoError(t, p.Destroy())
			require.Empty(t, s.held)
			require.Empty(t, s.events)
		})
	}
}

func (p streamed) malloc(stream pool.Stream) uintptr {
	p.t.Helper()
	b, err := p.Malloc(mib, stream)
	require.NoError(p.t, err)
	return b.Address
}

// used returns the blocks in use that a snapshot has of a stream.
func (p streamed) used(stream pool.Stream) map[uintptr]pool.BlockState {
	used := map[uintptr]pool.BlockState{}
	for _, s := range p.Snapshot() {
		for _, b := range s.Blocks {
			if s.Stream == stream && b.State != pool.Inactive {
				used[b.Address] = b.State
			}
		}
	}
	return used
}

func TestMemoryOfOneStreamIsNotForAnother(t *testing.T) {
	eachStreamed(t, func(t *testing.T, p streamed) {
		first := p.malloc(1)
		require.NoError(t, p.Free(first))
		if len(p.source.held) > 0 { // naive gives it back, and that waits for the device
			require.NotEqual(t, first, p.malloc(2))
		}
		require.Equal(t, first, p.malloc(1))
	})
}

func TestABlockWaitsForTheStreamsThatUsedIt(t *testing.T) {
	eachStreamed(t, func(t *testing.T, p streamed) {
		first := p.malloc(1)
		require.NoError(t, p.RecordStream(first, 2))
		require.NoError(t, p.RecordStream(first, 1), "its own")
		require.NoError(t, p.RecordStream(0, 2))
		require.ErrorIs(t, p.RecordStream(first+1, 2), pool.ErrInvalidAddress)
		p.source.busy[2] = true
		p.source.refuse = pool.ErrCapturing
		require.ErrorIs(t, p.Free(first), pool.ErrCapturing)
		p.source.refuse = nil
		require.Equal(t, map[uintptr]pool.BlockState{first: pool.Allocated}, p.used(1))
		require.NoError(t, p.Free(first), "it was still live")
		require.Equal(t, map[uintptr]pool.BlockState{first: pool.PendingFree}, p.used(1))
		require.ErrorIs(t, p.Free(first), pool.ErrInvalidAddress)
		require.NotEqual(t, first, p.malloc(1), "stream 2 is not done")
		p.source.busy[2] = false
		require.Equal(t, first, p.malloc(1))
	})
}

func TestTrimWaits(t *testing.T) {
	eachStreamed(t, func(t *testing.T, p streamed) {
		first := p.malloc(1)
		require.NoError(t, p.RecordStream(first, 2))
		p.source.busy[2] = true
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
	eachStreamed(t, func(t *testing.T, p streamed) {
		outside := p.malloc(5)
		require.NoError(t, p.Free(outside))
		require.ErrorIs(t, p.EndAllocateToPool(id), pool.ErrGraphPool)
		require.ErrorIs(t, p.ReleasePool(id), pool.ErrGraphPool)
		require.NoError(t, p.BeginAllocateToPool(id, captured))
		require.ErrorIs(t, p.BeginAllocateToPool(id, captured), pool.ErrGraphPool)
		_, err := p.Trim()
		require.ErrorIs(t, err, pool.ErrCapturing)
		inside := p.malloc(5)
		require.NoError(t, p.RecordStream(inside, 9))
		p.source.refuse = pool.ErrCapturing // no event may be recorded now
		require.NoError(t, p.Free(inside))
		other := p.malloc(6)
		require.NotEqual(t, inside, other)
		p.source.refuse = nil
		require.ErrorIs(t, p.ReleasePool(id), pool.ErrGraphPool, "it is being captured")
		require.NoError(t, p.EndAllocateToPool(id))
		require.ErrorIs(t, p.EndAllocateToPool(id), pool.ErrGraphPool)

		require.NoError(t, p.Free(other))
		again := p.malloc(5)
		require.NotEqual(t, inside, again)
		require.NoError(t, p.Free(again))
		_, err = p.Trim()
		require.NoError(t, err)
		require.NotEmpty(t, p.source.held, "the graph may be replayed")
		reserved := uint64(0)
		for _, s := range p.Snapshot() {
			reserved += s.Size
		}
		require.Equal(t, p.Stats().Reserved, reserved, "a snapshot has what is the graph's")
		require.NotEqual(t, inside, p.malloc(5))

		require.NoError(t, p.BeginAllocateToPool(id, captured), "another graph shares the pool")
		require.Equal(t, inside, p.malloc(5))
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
	eachStreamed(t, func(t *testing.T, p streamed) {
		for _, wrong := range []float64{-0.1, 1.1} {
			require.ErrorIs(t, p.SetMemoryFraction(wrong), pool.ErrOption)
		}
		require.NoError(t, p.SetMemoryFraction(0))
		_, err := p.Malloc(mib, 1)
		require.ErrorIs(t, err, pool.ErrOutOfMemory)
		require.NoError(t, p.SetMemoryFraction(1))
		p.malloc(1)
	})
}

// Before a stream is refused memory, other streams' pools give back what they can spare.
func TestShortage(t *testing.T) {
	s := newEventful(NewSource(capacity))
	made, err := newStreamed(s, "buddy", "capacity=16MiB")
	require.NoError(t, err)
	p := streamed{made, t, s}
	require.NoError(t, p.SetMemoryFraction(float64(20*mib)/capacity))
	first := p.malloc(1)
	_, err = p.Malloc(mib, 2)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.NoError(t, p.Free(first))
	require.NoError(t, p.Free(p.malloc(2)))
	require.NoError(t, p.Destroy())
	require.EqualValues(t, 1, p.Stats().Failures)
}
