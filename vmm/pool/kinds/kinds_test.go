package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
)

func TestAKindThatThereIsNot(t *testing.T) {
	p, err := construct("best", NewSource(mib), "")
	require.ErrorIs(t, err, pool.ErrOption)
	require.Nil(t, p)
	for _, name := range kinds.Names() {
		require.ErrorContains(t, err, name)
	}
}

func TestEveryKindRefusesOptionsItDoesNotKnow(t *testing.T) {
	for _, name := range kinds.Names() {
		p, err := construct(name, NewSource(mib), "nonsense=1")
		require.ErrorIs(t, err, pool.ErrOption, name)
		require.ErrorContains(t, err, "nonsense", name)
		require.Nil(t, p, name)
	}
}

func TestPeaksAreReset(t *testing.T) {
	for _, kind := range kinds.Names() {
		p := newPool(t, kind, 1<<40, "")
		first := p.malloc(10 * mib)
		p.malloc(1000)
		p.free(first)
		before := p.Stats()
		require.Greater(t, before.PeakLive, before.Live, kind)
		p.ResetPeakStats()
		after := p.Stats()
		require.Equal(t, []uint64{after.Requested, after.Live, after.Reserved},
			[]uint64{after.PeakRequested, after.PeakLive, after.PeakReserved}, kind)
		require.Equal(t, before.Mallocs, after.Mallocs)
	}
}
