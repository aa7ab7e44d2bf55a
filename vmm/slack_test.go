package vmm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/vmm/mapping"
	"tms/vmm/space"
)

// An allocation looks at little slack, however much is too small, in other rooms, or of extents in a transition.
func TestSlackIsFoundByItsSize(t *testing.T) {
	there := mapping.Mapping{Step: mapping.Accessible}
	mine, free, busy := &space.Room{}, &extent{Mapping: there}, &extent{Mapping: there, owner: aTransition}
	look := func(count uint32) (least time.Duration) {
		tag := &tag{slack: map[slackKind][]*segment{}, slackSizes: map[*space.Room][]uint32{}}
		list := func(room *space.Room, granules uint32, x *extent) *segment {
			kind, s := slackKind{room, granules}, &segment{extent: x}
			if tag.slack[kind] == nil {
				tag.slackSizes[room] = append(tag.slackSizes[room], granules)
			}
			tag.slack[kind] = append(tag.slack[kind], s)
			return s
		}
		for size := range count {
			list(nil, size+1, busy)
			list(&space.Room{}, count, free)
			list(mine, size+1, free)
		}
		wanted := list(mine, count+1, free)
		least = time.Hour
		for range 20 {
			start := time.Now()
			for range 100 {
				require.Same(t, wanted, tag.usableSlack(count+1, mine))
				require.Nil(t, tag.usableSlack(1, nil))
			}
			least = min(least, time.Since(start))
		}
		return least
	}
	few, many := look(1_000), look(10_000)
	require.Less(t, many, 4*few)
}
