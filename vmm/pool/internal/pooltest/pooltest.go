// Package pooltest has what the tests of pools that split and coalesce share.
package pooltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
)

// Base is the first address of a Source.
const Base = 1 << 40

// Source is a range that notes its requests.
type Source struct {
	*pool.Range
	Asked []uint64
	Err   error // if not nil, Allocate returns it
	Keeps error // if not nil, Free returns it
	Joins bool  // Coalesces returns it
}

// NewSource returns a source of capacity bytes.
func NewSource(capacity uint64) *Source {
	return &Source{Range: pool.NewRange(Base, capacity)}
}

// Allocate is pool.Source.Allocate.
func (s *Source) Allocate(size uint64) (uintptr, error) {
	s.Asked = append(s.Asked, size)
	if s.Err != nil {
		return 0, s.Err
	}
	return s.Range.Allocate(size)
}

// Free is pool.Source.Free.
func (s *Source) Free(address uintptr, size uint64) error {
	if s.Keeps != nil {
		return s.Keeps
	}
	return s.Range.Free(address, size)
}

// Reserve is pool.Coalescer.Reserve.
func (s *Source) Reserve(*pool.Room) bool { return s.Joins }

// Coalesces is pool.Coalescer.Coalesces.
func (s *Source) Coalesces(_, _ uintptr) bool { return s.Joins }

// New makes a pool. At the test's end it checks the pool, which must then give all back.
func New[P pool.Pool](t *testing.T, kind func(pool.Source, *pool.Options) (P, error), check func(*testing.T, P),
	source pool.Source, options string) P {
	t.Helper()
	parsed, err := pool.ParseOptions(options)
	require.NoError(t, err)
	p, err := kind(source, parsed)
	require.NoError(t, err)
	t.Cleanup(func() {
		check(t, p)
		require.NoError(t, p.Destroy())
		require.Zero(t, p.Stats().Reserved)
	})
	return p
}

// Malloc returns a block; it must succeed.
func Malloc(t *testing.T, p pool.Pool, size uint64) pool.Block {
	t.Helper()
	block, err := p.Malloc(size, 0)
	require.NoError(t, err)
	return block
}

// Free frees blocks that must be live.
func Free(t *testing.T, p pool.Pool, blocks ...pool.Block) {
	t.Helper()
	for _, b := range blocks {
		require.NoError(t, p.Free(b.Address))
	}
}

// Walk checks that a table's chunks tile its segments and know their neighbours. It hands each to visit with the one
// before it in the segment.
func Walk[T any](t *testing.T, table *chunks.Table[T], visit func(h, before chunks.Handle)) {
	t.Helper()
	for _, s := range table.Regions() {
		next, before := s.Address, chunks.None
		for h := range table.In(s) {
			c := table.At(h)
			require.Equal(t, next, c.Address)
			require.Equal(t, before, c.Previous)
			require.Positive(t, c.Size)
			require.Equal(t, !c.Taken(), table.IsFree(h))
			visit(h, before)
			next, before = c.End(), h
		}
		require.Equal(t, s.Address+uintptr(s.Size), next)
	}
}

// CheckBestFit walks all chunks: free neighbours were joined, and exactly the free ones can be found.
func CheckBestFit(t *testing.T, b *chunks.BestFit) {
	t.Helper()
	free, largest := 0, uint64(0)
	Walk(t, &b.Table, func(h, before chunks.Handle) {
		c := b.At(h)
		if c.Taken() {
			return
		}
		free++
		largest = max(largest, c.Size)
		require.False(t, b.IsFree(before), "free neighbours at %#x not joined", c.Address)
		require.True(t, b.IsListed(h))
	})
	require.Equal(t, free, b.FreeChunks())
	require.Equal(t, largest, b.Largest())
}
