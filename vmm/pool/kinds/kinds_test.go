package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

func TestAKindThatThereIsNot(t *testing.T) {
	p, err := kinds.New("best", pool.NewRange(1<<20, 1<<20), nil)
	require.ErrorIs(t, err, pool.ErrOption)
	require.Nil(t, p)
	for _, name := range kinds.Names() {
		require.ErrorContains(t, err, name)
	}
}

func TestEveryKindRefusesOptionsItDoesNotKnow(t *testing.T) {
	for _, name := range kinds.Names() {
		options, err := pool.ParseOptions("nonsense=1")
		require.NoError(t, err)
		p, err := kinds.New(name, pool.NewRange(1<<20, 1<<20), options)
		require.ErrorIs(t, err, pool.ErrOption, name)
		require.ErrorContains(t, err, "nonsense", name)
		require.Nil(t, p, name)
	}
}

func TestPeaksAreReset(t *testing.T) {
	for _, kind := range kinds.Names() {
		p, err := kinds.New(kind, pool.NewRange(1<<40, 1<<40), nil)
		require.NoError(t, err)
		first, err := p.Malloc(10<<20, 0)
		require.NoError(t, err)
		second, err := p.Malloc(1000, 0)
		require.NoError(t, err)
		require.NoError(t, p.Free(first.Address))
		before := p.Stats()
		require.Greater(t, before.PeakLive, before.Live, kind)
		p.ResetPeakStats()
		after := p.Stats()
		require.Equal(t, []uint64{after.Requested, after.Live, after.Reserved},
			[]uint64{after.PeakRequested, after.PeakLive, after.PeakReserved}, kind)
		require.Equal(t, before.Mallocs, after.Mallocs)
		require.NoError(t, p.Free(second.Address))
		require.NoError(t, p.Destroy())
	}
}
