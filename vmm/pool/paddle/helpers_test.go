package paddle

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
	asked   []uint64
	refuses error // when not nil, what Free answers
}

func newSource(capacity uint64) *source {
	return &source{Range: pool.NewRange(base, capacity)}
}

func (s *source) Allocate(size uint64) (uintptr, error) {
	s.asked = append(s.asked, size)
	return s.Range.Allocate(size)
}

func (s *source) Free(address uintptr, size uint64) error {
	if s.refuses != nil {
		return s.refuses
	}
	return s.Range.Free(address, size)
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

// check walks all chunks: they tile the refills, free buddies were joined, exactly the free ones are in
// the set.
func check(t *testing.T, p *Pool) {
	t.Helper()
	idle := 0
	for _, segment := range p.table.Segments() {
		next, before := segment.Address, chunks.None
		for h := range p.table.In(segment) {
			c := p.table.At(h)
			require.Equal(t, next, c.Address)
			require.Equal(t, before, c.Previous)
			if !c.Live() {
				idle++
				require.False(t, p.table.IsFree(before), "free buddies at %#x not joined", c.Address)
				key, found, _ := p.free.Ceiling(ordered.Key{Major: c.Size, Minor: uint64(c.Address)})
				require.Equal(t, ordered.Key{Major: c.Size, Minor: uint64(c.Address)}, key)
				require.Equal(t, uint32(h), found)
			}
			next, before = c.End(), h
		}
		require.Equal(t, segment.Address+uintptr(segment.Size), next)
	}
	require.Equal(t, idle, p.free.Len())
}
