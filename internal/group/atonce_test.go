package group

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/stats"
)

// During a swap others find no less room than before it, or than after it, if that is less.
func TestASwapLeavesFree(t *testing.T) {
	const size = 1 << 40
	for _, c := range []struct{ free, gives, needs, leaves uint64 }{
		{0, 4, 4, 0},
		{100 << 30, 4, 4, 100 << 30}, // also what exceeds a reserve
		{10, 4, 8, 6},                // IN needs more than OUT gives
		{10, 8, 4, 10},
		{4, 4, 8, 0},
	} {
		leave := leaves(map[string]stats.Device{"GPU-a": {FreeBytes: c.free, TotalBytes: size}},
			map[string]uint64{"GPU-a": c.gives, "GPU-b": 1}, map[string]uint64{"GPU-a": c.needs})
		require.Equal(t, map[string]uint64{"GPU-a": c.leaves}, leave, "%+v", c)
	}
	require.Nil(t, leaves(nil, map[string]uint64{"GPU-a": 1}, nil))
}
