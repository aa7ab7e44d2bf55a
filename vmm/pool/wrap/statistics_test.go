package wrap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/wrap"
)

// counters has bytes and allocations with value, peak and total each.
func counters(b, bPeak, bTotal, a, aPeak, aTotal int64) wrap.Counters {
	return wrap.Counters{
		Bytes:       wrap.Counter{Value: b, Peak: bPeak, Total: bTotal},
		Allocations: wrap.Counter{Value: a, Peak: aPeak, Total: aTotal},
	}
}

func TestStatistics(t *testing.T) {
	p := wrap.NewStatistics(beneath(t))
	require.Equal(t, wrap.Counters{}, p.Counters())
	first, second := malloc(t, p, 1000, 0), malloc(t, p, 500, 0)
	require.NoError(t, p.Free(first))
	malloc(t, p, 300, 0)
	require.Equal(t, counters(800, 1500, 1800, 2, 2, 3), p.Counters(), "what was asked for")

	_, err := p.Malloc(2<<20, 0)
	require.ErrorIs(t, err, pool.ErrTooLarge)
	require.ErrorIs(t, p.Free(second+1), pool.ErrInvalidAddress)
	malloc(t, p, 0, 0)
	require.NoError(t, p.Free(0))
	require.Equal(t, counters(800, 1500, 1800, 2, 2, 3), p.Counters(), "nothing happened")

	require.NoError(t, p.Free(second))
	require.NoError(t, p.Destroy())
	require.Equal(t, counters(0, 1500, 1800, 0, 2, 3), p.Counters())
}

func TestStatisticsOfNestedScopes(t *testing.T) {
	p := wrap.NewStatistics(beneath(t))
	outside := malloc(t, p, 100, 0)
	require.NoError(t, p.Free(malloc(t, p, 50, 0)))

	require.Equal(t, counters(100, 150, 150, 1, 2, 2), p.Push())
	require.Equal(t, wrap.Counters{}, p.Counters())
	inside := malloc(t, p, 20, 0)
	require.NoError(t, p.Free(outside))
	require.Equal(t, counters(-80, 20, 20, 0, 1, 1), p.Counters())

	require.Equal(t, counters(-80, 20, 20, 0, 1, 1), p.Push())
	large := malloc(t, p, 400, 0)
	require.NoError(t, p.Free(large))
	inner, err := p.Pop()
	require.NoError(t, err)
	require.Equal(t, counters(0, 400, 400, 0, 1, 1), inner)

	// The peak of the inner scope came on top of what the middle one had then: -80 + 400.
	middle, err := p.Pop()
	require.NoError(t, err)
	require.Equal(t, counters(-80, 320, 420, 0, 1, 2), middle)
	require.Equal(t, counters(20, 420, 570, 1, 2, 4), p.Counters())

	_, err = p.Pop()
	require.ErrorIs(t, err, wrap.ErrNoScope)
	require.NoError(t, p.Free(inside))
	require.Equal(t, counters(0, 420, 570, 0, 2, 4), p.Counters())
}
