package small

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A slab is found as long as it has room, whatever others have, and is nowhere once it is full or taken out.
func TestShelves(t *testing.T) {
	type owner struct {
		slab  *Slab
		place Place[owner]
		busy  bool
	}
	var shelves Shelves[owner]
	usable := func(o *owner) bool { return !o.busy }
	count := func() (n int) {
		for _, there := range shelves.Owners() {
			require.True(t, there)
			n++
		}
		return n
	}
	first, second := &owner{slab: New(64 * Unit)}, &owner{slab: New(64 * Unit)}
	for _, o := range []*owner{first, second} {
		shelves.Put(&o.place, o, o.slab)
	}
	second.busy = true
	for range 8 {
		got, _, ok := shelves.Allocate(8*Unit, usable)
		require.True(t, ok)
		require.Same(t, first, got)
	}
	for _, size := range []uint64{8 * Unit, Unit} { // the search finds out that it has less, and then that it is full
		_, _, ok := shelves.Allocate(size, usable)
		require.False(t, ok)
	}
	require.Equal(t, 1, count())
	second.busy = false
	require.Same(t, second, shelves.Find(64*Unit, usable))
	require.Nil(t, shelves.Find(65*Unit, usable))

	first.slab.Free(0)
	shelves.Put(&first.place, first, first.slab)
	require.Equal(t, 2, count())
	second.place.Take()
	second.place.Take()
	require.Equal(t, 1, count())
	require.Same(t, first, shelves.Find(8*Unit, usable))
}
