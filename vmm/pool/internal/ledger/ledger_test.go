package ledger

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// balance checks the equations that the declaration of Ledger has.
func balance(t *testing.T, l *Ledger[Block]) {
	t.Helper()
	s := l.Stats()
	sum := func(blocks map[uintptr]Block) (requested, size uint64) {
		for _, b := range blocks {
			requested, size = requested+b.Requested, size+b.Size
		}
		return requested, size
	}
	requested, live := sum(l.live)
	_, held := sum(l.held)
	reserved := uint64(0)
	for _, size := range l.segments {
		reserved += size
	}
	require.Equal(t, []uint64{uint64(len(l.live)), s.Mallocs - s.Frees}, []uint64{s.Blocks, s.Blocks})
	require.Equal(t, []uint64{live, requested}, []uint64{s.Live, s.Requested})
	require.Equal(t, []uint64{uint64(len(l.segments)), s.SourceMallocs - s.SourceFrees}, []uint64{s.Segments, s.Segments})
	require.Equal(t, reserved, s.Reserved)
	require.LessOrEqual(t, requested, live)
	require.LessOrEqual(t, live+held, reserved)
	require.LessOrEqual(t, live, s.PeakLive)
	require.LessOrEqual(t, requested, s.PeakRequested)
	require.LessOrEqual(t, reserved, s.PeakReserved)
	for address := range l.held {
		require.NotContains(t, l.live, address)
	}
}

var errBusy = errors.New("busy")

// moody is a kind that makes each block a segment, whose room is at times refused.
type moody struct {
	Base[Block]
	ledger  *Ledger[Block]
	refuses bool
}

func newMoody(source pool.Source) *moody {
	m := &moody{ledger: NewOfBlocks("moody", source)}
	m.Open(m.ledger, Placement[Block]{
		Place: func(size uint64, _ pool.Stream) (pool.Block, error) {
			address, err := m.ledger.Allocate(size + 100)
			if err != nil {
				return pool.Block{}, err
			}
			return m.ledger.Enter(address, Block{Requested: size, Size: size + 100}, size, size+100), nil
		},
		Reuse: func(address uintptr, b Block) error {
			if m.refuses {
				return errBusy
			}
			return m.ledger.Free(address, b.Size)
		},
		Trim: func() error { return nil },
	})
	return m
}

func TestTheLedgerBalances(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	source := pool.NewRange(1<<20, 1<<20)
	m := newMoody(source)
	for range 5000 {
		m.refuses = random.IntN(4) == 0
		live, held := slices.Sorted(maps.Keys(m.ledger.live)), slices.Sorted(maps.Keys(m.ledger.held))
		one := func(of []uintptr) uintptr {
			if len(of) == 0 {
				return 1
			}
			return of[random.IntN(len(of))]
		}
		before := m.Stats()
		var err error
		switch n := random.IntN(100); {
		case n < 50:
			_, _ = m.Malloc(1+random.Uint64N(40_000), 0)
		case n < 70:
			err = m.Free(one(live))
		case n < 80:
			err = m.Hold(one(live))
		case n < 90:
			err = m.Release(one(held))
		case n < 98:
			err = m.Restore(one(held))
		case n < 99:
			_, _ = m.Trim()
		default:
			_ = m.Destroy()
		}
		balance(t, m.ledger)
		if err != nil {
			require.Equal(t, before, m.Stats(), "an error changes nothing")
		}
	}
	m.refuses = false
	require.NoError(t, m.Destroy())
	balance(t, m.ledger)
	require.Zero(t, source.Held())
}

func TestAHeldBlockIsNeitherLiveNorFree(t *testing.T) {
	m := newMoody(pool.NewRange(1<<20, 1<<20))
	b, err := m.Malloc(100, 0)
	require.NoError(t, err)
	require.NoError(t, m.Check(b.Address))
	require.NoError(t, m.Hold(b.Address))
	require.Equal(t, pool.PendingFree, m.Snapshot()[0].Blocks[0].State)
	for _, call := range []func(uintptr) error{m.Free, m.Hold, m.Check} {
		require.ErrorIs(t, call(b.Address), pool.ErrInvalidAddress)
	}
	require.NoError(t, m.Restore(b.Address))
	require.NoError(t, m.Check(b.Address))
	for _, call := range []func(uintptr) error{m.Release, m.Restore} {
		require.ErrorIs(t, call(b.Address), pool.ErrInvalidAddress, "it is live")
	}
	require.NoError(t, m.Hold(b.Address))
	m.refuses = true
	require.ErrorIs(t, m.Release(b.Address), errBusy)
	m.refuses = false
	require.NoError(t, m.Release(b.Address), "it was still held")
	require.Empty(t, m.Snapshot())
}
