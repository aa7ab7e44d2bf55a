package naive_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/pooltest/conformance"
	"tms/vmm/pool/naive"
)

func TestEveryBlockIsASegment(t *testing.T) {
	source := conformance.NewSource(1 << 20)
	p, err := naive.New(source, nil)
	require.NoError(t, err)
	for i, size := range []uint64{1, 1000, 4096} {
		b, err := p.Malloc(size, 0)
		require.NoError(t, err)
		require.Equal(t, size, b.Size)
		segments, _ := source.Held()
		require.Equal(t, i+1, segments)
	}
	_, bytes := source.Held()
	require.Equal(t, uint64(1+1000+4096), bytes)
	require.Equal(t, uint64(3), p.Stats().SourceMallocs)
}

func TestABlockThatTheSourceDoesNotTakeStaysLive(t *testing.T) {
	source := conformance.NewSource(1 << 20)
	p, err := naive.New(source, nil)
	require.NoError(t, err)
	b, err := p.Malloc(1000, 0)
	require.NoError(t, err)
	source.RefuseFree = errors.New("busy")
	require.ErrorIs(t, p.Free(b.Address), source.RefuseFree)
	require.Equal(t, uint64(1), p.Stats().Blocks)
	source.RefuseFree = nil
	require.NoError(t, p.Free(b.Address))
}

func TestDestroyCountsAsFrees(t *testing.T) {
	p, err := naive.New(conformance.NewSource(1<<20), nil)
	require.NoError(t, err)
	for range 3 {
		_, err := p.Malloc(1, 0)
		require.NoError(t, err)
	}
	require.NoError(t, p.Destroy())
	require.Equal(t, uint64(3), p.Stats().Frees)
	require.Equal(t, uint64(3), p.Stats().SourceFrees)
}

func TestThereAreNoOptions(t *testing.T) {
	options, err := pool.ParseOptions("round=512")
	require.NoError(t, err)
	_, err = naive.New(conformance.NewSource(1<<20), options)
	require.ErrorIs(t, err, pool.ErrOption)
}
