package bfc

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

// check walks all chunks: free neighbours were joined unless a stamp forbids it, and exactly the free
// ones are in the sets.
func check(t *testing.T, p *Pool) {
	t.Helper()
	idle, stamped := 0, 0
	pooltest.Walk(t, p.table, func(h, before chunks.Handle) {
		c := p.table.At(h)
		require.Zero(t, c.Size%granularity)
		if c.Live() {
			require.Zero(t, p.stamp(h))
			return
		}
		idle++
		found, ok := p.free.Ceiling(ordered.Fit(c.Size, c.Address))
		require.True(t, ok)
		require.Equal(t, ordered.Fit(c.Size, c.Address), found.Key)
		require.Equal(t, uint32(h), found.Value)
		if p.stamp(h) != 0 {
			stamped++
		} else if p.table.IsFree(before) {
			require.NotZero(t, p.stamp(before), "free neighbours at %#x not joined", c.Address)
		}
	})
	require.Equal(t, idle, p.free.Len())
	require.Equal(t, stamped, p.stamped.Len())
}
