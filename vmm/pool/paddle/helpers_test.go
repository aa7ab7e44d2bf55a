package paddle

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
	"tms/vmm/pool/internal/pooltest"
)

const (
	KiB = 1 << 10
	MiB = 1 << 20
	GiB = 1 << 30
)

func newPool(t *testing.T, source pool.Source, options string) *Pool {
	t.Helper()
	return pooltest.New(t, New, check, source, options)
}

func detail(p *Pool) Detail { return p.Stats().Detail.(Detail) }

// check walks all chunks: free buddies were joined, exactly the free ones are in the set.
func check(t *testing.T, p *Pool) {
	t.Helper()
	idle := 0
	pooltest.Walk(t, p.table, func(h, before chunks.Handle) {
		c := p.table.At(h)
		if c.Live() {
			return
		}
		idle++
		require.False(t, p.table.IsFree(before), "free buddies at %#x not joined", c.Address)
		found, _ := p.free.Ceiling(ordered.Fit(c.Size, c.Address))
		require.Equal(t, ordered.Fit(c.Size, c.Address), found.Key)
		require.Equal(t, uint32(h), found.Value)
	})
	require.Equal(t, idle, p.free.Len())
}
