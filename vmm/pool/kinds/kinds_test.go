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
