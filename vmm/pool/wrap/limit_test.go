package wrap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/buddy"
	"tms/vmm/pool/conformance"
	"tms/vmm/pool/wrap"
)

// beneath makes a pool of 1 MiB to wrap.
func beneath(t *testing.T) pool.Pool {
	t.Helper()
	options, err := pool.ParseOptions("capacity=1MiB")
	require.NoError(t, err)
	p, err := buddy.New(conformance.NewSource(1<<20), options)
	require.NoError(t, err)
	return p
}

func malloc(t *testing.T, p pool.Pool, size uint64, stream pool.Stream) uintptr {
	t.Helper()
	b, err := p.Malloc(size, stream)
	require.NoError(t, err)
	return b.Address
}

func TestLimit(t *testing.T) {
	p := wrap.NewLimit(beneath(t), 10_000)
	first := malloc(t, p, 6_000, 0)
	second := malloc(t, p, 4_000, 0)
	_, err := p.Malloc(1, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	require.Equal(t, uint64(1), p.Stats().Failures)
	require.Equal(t, uint64(10_000), p.Stats().Requested)

	require.NoError(t, p.Free(second))
	require.ErrorIs(t, p.Free(second), pool.ErrInvalidAddress)
	require.ErrorIs(t, p.Free(first+1), pool.ErrInvalidAddress)
	_, err = p.Malloc(4_001, 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	_, err = p.Malloc(^uint64(0), 0)
	require.ErrorIs(t, err, pool.ErrOutOfMemory)
	malloc(t, p, 4_000, 0)
	malloc(t, p, 0, 0)

	require.NoError(t, p.Destroy())
	malloc(t, p, 10_000, 0)
}

func TestLimitDoesNotCountWhatThePoolRefused(t *testing.T) {
	p := wrap.NewLimit(beneath(t), 3<<20)
	_, err := p.Malloc(2<<20, 0)
	require.ErrorIs(t, err, pool.ErrTooLarge)
	require.Equal(t, uint64(1), p.Stats().Failures)
	malloc(t, p, 1<<20, 0)
	_, err = p.Malloc(1<<20, 0)
	require.ErrorContains(t, err, "buddy", "refused by the pool, not by the limit")
}
