package bfc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
)

const (
	KiB = 1 << 10
	MiB = 1 << 20
	GiB = 1 << 30

	base = 1 << 40
)

// source notes what it was asked for.
type source struct {
	*pool.Range
	asked []uint64
	err   error // when not nil, what it answers
}

func newSource(capacity uint64) *source {
	return &source{Range: pool.NewRange(base, capacity)}
}

func (s *source) Allocate(size uint64) (uintptr, error) {
	s.asked = append(s.asked, size)
	if s.err != nil {
		return 0, s.err
	}
	return s.Range.Allocate(size)
}

func newPool(t *testing.T, source pool.Source, options string) *Pool {
	t.Helper()
	parsed, err := pool.ParseOptions(options)
	require.NoError(t, err)
	p, err := New(source, parsed)
	require.NoError(t, err)
	t.Cleanup(func() {
		check(t, p)
		require.NoError(t, p.Destroy())
		require.Zero(t, p.Stats().Reserved)
	})
	return p
}

func malloc(t *testing.T, p *Pool, size uint64) pool.Block {
	t.Helper()
	block, err := p.Malloc(size, 0)
	require.NoError(t, err)
	return block
}

func free(t *testing.T, p *Pool, blocks ...pool.Block) {
	t.Helper()
	for _, b := range blocks {
		require.NoError(t, p.Free(b.Address))
	}
}

func detail(p *Pool) Detail { return p.Stats().Detail.(Detail) }

// check walks all chunks: they tile the regions, neighbours know each other, free neighbours were
// joined unless a stamp forbids it, and exactly the free ones are in the bins.
func check(t *testing.T, p *Pool) {
	t.Helper()
	idle, stamped := 0, 0
	for _, region := range p.table.Segments() {
		next, before := region.Address, chunks.None
		for h := range p.table.In(region) {
			c := p.table.At(h)
			require.Equal(t, next, c.Address)
			require.Equal(t, before, c.Previous)
			require.Positive(t, c.Size)
			require.Zero(t, c.Size%granularity)
			if !c.Live() {
				idle++
				b := binFor(c.Size)
				key, found, ok := p.bins[b].Ceiling(ordered.Key{Major: c.Size, Minor: uint64(c.Address)})
				require.True(t, ok)
				require.Equal(t, ordered.Key{Major: c.Size, Minor: uint64(c.Address)}, key)
				require.Equal(t, uint32(h), found)
				require.NotZero(t, p.occupied&(1<<b))
				if p.stamp(h) != 0 {
					stamped++
				} else if p.table.IsFree(before) {
					require.NotZero(t, p.stamp(before), "free neighbours at %#x not joined", c.Address)
				}
			} else {
				require.Zero(t, p.stamp(h))
			}
			next, before = c.End(), h
		}
		require.Equal(t, region.Address+uintptr(region.Size), next)
	}
	for b := range p.bins {
		idle -= p.bins[b].Len()
		require.Equal(t, p.bins[b].Len() > 0, p.occupied&(1<<b) != 0)
	}
	require.Zero(t, idle)
	require.Equal(t, stamped, p.stamped.Len())
}
