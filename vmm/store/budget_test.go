package store

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/machine/hostmemory"
)

func promised(l *hostmemory.Ledger) (bytes uint64) {
	for _, p := range l.Promised() {
		bytes += p.Bytes
	}
	return bytes
}

// What is taken was promised once, and others see it until it is touched.
func TestBudget(t *testing.T) {
	const page = 4096
	directory := t.TempDir()
	l := &hostmemory.Ledger{Directory: func() (string, error) { return directory, nil }}
	b := &Budget{Ledger: l}
	require.NoError(t, b.Check(100*page))
	require.NoError(t, b.Take(60*page))
	require.NoError(t, b.Take(30*page))
	require.EqualValues(t, 100*page, promised(l))
	require.NoError(t, b.Take(30*page)) // 20 more than was checked
	require.EqualValues(t, 120*page, promised(l))
	b.Touched(110 * page)
	require.EqualValues(t, 10*page, promised(l))
	b.End()
	require.Zero(t, promised(l))
	if hostmemory.Available("self", nil) == math.MaxUint64 {
		t.Skip("nothing limits the host memory here")
	}
	err := b.Take(1 << 60)
	require.ErrorIs(t, err, ErrHostMemory)
	require.ErrorContains(t, err, "are needed and")
}

// Without a budget the system is asked each time.
func TestNoBudget(t *testing.T) {
	var none *Budget
	for range 2 {
		require.NoError(t, none.Take(1))
		none.Touched(1)
	}
	require.NoError(t, new(Budget).Take(1))
}
