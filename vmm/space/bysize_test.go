package space

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A search looks at few things, however many are too small, in other rooms, or not usable.
func TestAThingIsFoundByItsSize(t *testing.T) {
	type thing struct {
		slot Slot[thing]
		busy bool
	}
	usable := func(one *thing) bool { return !one.busy }
	mine := &Room{}
	look := func(count uint32) (least time.Duration) {
		var all BySize[thing]
		list := func(room *Room, granules uint32, busy bool) *thing {
			one := &thing{busy: busy}
			all.Put(&one.slot, one, room, granules)
			return one
		}
		for size := range count {
			list(nil, size+1, true)
			list(&Room{}, count, false)
			list(mine, size+1, false)
		}
		wanted := list(mine, count+1, false)
		require.True(t, all.Check())
		least = time.Hour
		for range 20 {
			start := time.Now()
			for range 100 {
				require.Same(t, wanted, all.Find(count+1, mine, usable))
				require.Nil(t, all.Find(1, nil, usable))
			}
			least = min(least, time.Since(start))
		}
		wanted.slot.Take()
		require.Nil(t, all.Find(count+1, mine, usable))
		require.True(t, all.Check())
		return least
	}
	few, many := look(1_000), look(10_000)
	require.Less(t, many, 4*few)
}
