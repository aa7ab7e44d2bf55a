package backup

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBudget(t *testing.T) {
	b := &Budget{asked: true, left: 100}
	require.NoError(t, b.Check(100))
	require.NoError(t, b.Take(60))
	err := b.Take(60)
	require.ErrorIs(t, err, ErrHostMemory)
	require.Equal(t, &Shortage{Needed: 60, Available: 40}, err)
	require.ErrorContains(t, err, "60 bytes are needed and 40 bytes are available")
	require.Error(t, b.Check(41))
	b.Give(20)
	require.NoError(t, b.Take(60))
}

// Without a budget the system is asked each time.
func TestNoBudget(t *testing.T) {
	var none *Budget
	for range 2 {
		require.NoError(t, none.Take(1))
		none.Give(1)
	}
	require.NoError(t, new(Budget).Take(1))
}
