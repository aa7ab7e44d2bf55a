package buddy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

func TestSlotsAreUsedAgain(t *testing.T) {
	options, err := pool.ParseOptions("capacity=1MiB")
	require.NoError(t, err)
	made, err := New(pool.NewRange(1<<20, 8<<20), options)
	require.NoError(t, err)
	p := made.(*Pool)
	for range 100 {
		for range 3 {
			_, err := p.Malloc(1<<20, 0)
			require.NoError(t, err)
		}
		require.NoError(t, p.Destroy())
	}
	require.Len(t, p.roots, 3)
}
