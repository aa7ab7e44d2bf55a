package bfc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

func newPool(t *testing.T, settings string) *Pool {
	t.Helper()
	options, err := pool.ParseOptions(settings)
	require.NoError(t, err)
	p, err := New(pool.NewRange(1<<40, 1<<30), options)
	require.NoError(t, err)
	return p
}

// It is here, and not among the tests of kinds, for the race detector.
func TestMallocWaitsForAFree(t *testing.T) {
	p := newPool(t, "memory_limit=2MiB,retry_ms=60000")
	b, err := p.Malloc(2<<20, 0)
	require.NoError(t, err)
	time.AfterFunc(20*time.Millisecond, func() { _ = p.Free(b.Address) })
	_, err = p.Malloc(2<<20, 0)
	require.NoError(t, err)
	require.Zero(t, p.Stats().Failures)

	impatient := newPool(t, "memory_limit=2MiB,retry_ms=30")
	_, err = impatient.Malloc(2<<20, 0)
	require.NoError(t, err)
	begin := time.Now()
	_, err = impatient.Malloc(1, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
	require.EqualValues(t, 1, impatient.Stats().Failures)
}

func TestBinBoundaries(t *testing.T) {
	for b := range binCount {
		require.Equal(t, b, binFor(binSize(b)))
		require.Equal(t, b, binFor(binSize(b)+255))
		require.Equal(t, b, binFor(2*binSize(b)-1))
	}
	require.EqualValues(t, 256<<20, binSize(binCount-1))
	require.Equal(t, binCount-1, binFor(1<<61))
}

// The first request that fails for lack of memory is dumped, even one that no state of the pool could serve; nothing
// after it is.
func TestDumpOnFailure(t *testing.T) {
	for settings, dumps := range map[string]int{"": 0, ",dump_log_on_failure=true": 1} {
		for _, sizes := range [][]uint64{{2 << 20, 5 << 20, 2 << 20}, {5 << 20, 2 << 20, 5 << 20}} {
			p := newPool(t, "memory_limit=4MiB"+settings)
			var logged []string
			p.log = func(text string) {
				require.True(t, p.TryLock(), "the lock is not held")
				p.Unlock()
				logged = append(logged, text)
			}
			_, err := p.Malloc(3<<20, 0)
			require.NoError(t, err)
			for _, size := range sizes {
				_, err := p.Malloc(size, 0)
				require.Error(t, err)
			}
			require.Len(t, logged, dumps)
			for _, text := range logged {
				require.Contains(t, text, "out of memory for "+human(sizes[0]))
				require.Contains(t, text, "of 4194304 bytes, 3145728 requested\nIn use by size:")
			}
		}
	}
}

func TestHuman(t *testing.T) {
	for bytes, text := range map[uint64]string{
		0: "0B", 1023: "1023B", 1536: "1.5KiB", 2 << 30: "2.0GiB", 1 << 62: "4.0EiB",
	} {
		require.Equal(t, text, human(bytes))
	}
}
