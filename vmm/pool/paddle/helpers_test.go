package paddle

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
)

const (
	KiB = 1 << 10
	MiB = 1 << 20
	GiB = 1 << 30
)

// source is a range that notes its requests.
type source struct {
	*pool.Range
	asked []uint64
	keeps error // if not nil, Free returns it
}

func newSource(capacity uint64) *source { return &source{Range: pool.NewRange(1<<40, capacity)} }

func (s *source) Allocate(size uint64) (uintptr, error) {
	s.asked = append(s.asked, size)
	return s.Range.Allocate(size)
}

func (s *source) Free(address uintptr, size uint64) error {
	if s.keeps != nil {
		return s.keeps
	}
	return s.Range.Free(address, size)
}

// newPool makes a pool. At the test's end it checks the pool, which must then give everything back.
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

// check walks all chunks: they tile their segments and know their neighbours, free ones were joined, and exactly those
// can be found.
func check(t *testing.T, p *Pool) {
	t.Helper()
	free, largest := 0, uint64(0)
	for _, s := range p.table.Regions() {
		next, before := s.Address, chunks.None
		for h := range p.table.In(s) {
			c := p.table.At(h)
			require.Equal(t, next, c.Address)
			require.Equal(t, before, c.Previous)
			require.Positive(t, c.Size)
			require.Equal(t, !c.Taken(), p.table.IsFree(h))
			if !c.Taken() {
				free++
				largest = max(largest, c.Size)
				require.False(t, p.table.IsFree(before), "free neighbours at %#x not joined", c.Address)
			}
			next, before = c.End(), h
		}
		require.Equal(t, s.Address+uintptr(s.Size), next)
	}
	require.Equal(t, free, p.table.FreeChunks())
	require.Equal(t, largest, p.table.Largest())
}
