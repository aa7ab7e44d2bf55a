package slab

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClasses(t *testing.T) {
	const bound = 64 << 20
	var before uint64
	for i, c := range classes(bound, 64<<10) {
		require.Greater(t, c.size, before)
		require.Zero(t, c.size%granularity)
		require.Equal(t, i, classOf(c.size))
		require.Equal(t, i, classOf(before+1), "the class begins above the one before")
		if before >= linearLimit {
			require.LessOrEqual(t, 4*c.size, 5*before, "steps of at most a quarter")
		}
		require.GreaterOrEqual(t, c.slab, leastObjects*c.size)
		require.Zero(t, c.slab&(c.slab-1))
		require.Less(t, 8*(c.slab%c.size), c.slab, "the end of a slab that no object fits into")
		before = c.size
	}
	require.Equal(t, uint64(bound), before)
}

func TestSizesOfClasses(t *testing.T) {
	for size, want := range map[uint64]uint64{
		1: 256, 256: 256, 257: 512, 1000: 1024, 1025: 1280, 1281: 1536, 1600: 1792, 2048: 2048, 2049: 2560,
		66 << 10: 80 << 10, 1<<20 - 1: 1 << 20,
	} {
		require.Equal(t, want, classSize(classOf(size)), "%d bytes", size)
	}
}
