package turns

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// During a turn others find no less room than before it, or than after it, if that is less.
func TestATurnLeavesFree(t *testing.T) {
	all := []Process{{ID: 1, Need: 8}, {ID: 2, Tags: []Tag{{"a", 6}, {"b", 3}}}, {ID: 3, Tags: []Tag{{"a", 5}}}}
	for _, c := range []struct {
		free, leaves uint64
		gone         []Part
	}{
		{10, 2, nil},
		{4, 1, []Part{{ID: 3}}},
		{4, 4, []Part{{ID: 2}}},
		{4, 2, []Part{{ID: 2, Tags: []string{"a"}}}},
		{1, 0, []Part{{ID: 3, Tags: []string{"a"}}}},
		{0, 0, []Part{{ID: 2}, {ID: 3}}},
	} {
		require.Equal(t, c.leaves, leaves(Device{Free: c.free, Reserve: 1}, all, 8, c.gone), "%+v", c)
	}
}
