package naive_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/naive"
)

// source is a range that notes the bytes it gave, and can refuse to take them back.
type source struct {
	*pool.Range
	bytes      uint64
	refuseFree error
}

func newSource() *source { return &source{Range: pool.NewRange(0x7f00_0000_0200, 1<<20)} }

func (s *source) Allocate(size uint64) (uintptr, error) {
	s.bytes += size
	return s.Range.Allocate(size)
}

func (s *source) Free(address uintptr, size uint64) error {
	if s.refuseFree != nil {
		return s.refuseFree
	}
	return s.Range.Free(address, size)
}

func TestEveryBlockIsASegment(t *testing.T) {
	source := newSource()
	p, err := naive.New(source, nil)
	require.NoError(t, err)
	for i, size := range []uint64{1, 1000, 4096} {
		b, err := p.Malloc(size, 0)
		require.NoError(t, err)
		require.Equal(t, size, b.Size)
		require.Equal(t, i+1, source.Held())
	}
	require.Equal(t, uint64(1+1000+4096), source.bytes)
	require.Equal(t, uint64(3), p.Stats().SourceMallocs)
}

func TestABlockThatTheSourceDoesNotTakeStaysLive(t *testing.T) {
	source := newSource()
	p, err := naive.New(source, nil)
	require.NoError(t, err)
	b, err := p.Malloc(1000, 0)
	require.NoError(t, err)
	source.refuseFree = errors.New("busy")
	require.ErrorIs(t, p.Free(b.Address), source.refuseFree)
	require.Equal(t, uint64(1), p.Stats().Blocks)
	source.refuseFree = nil
	require.NoError(t, p.Free(b.Address))
}

func TestDestroyCountsAsFrees(t *testing.T) {
	p, err := naive.New(newSource(), nil)
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
	_, err = naive.New(newSource(), options)
	require.ErrorIs(t, err, pool.ErrOption)
}
