package stats_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/stats"
)

// No two names look the same, and nearly all look as they are.
func TestTagText(t *testing.T) {
	shown := map[string]string{
		"weights": "weights", "größe 重み": "größe 重み", "�": "�", `C:\tags`: `C:\tags`,
		"\xff": `\xff`, "\xfe": `\xfe`, `\xff`: `\\xff`, `\\xff`: `\\\\xff`, "\\\xff": `\\\xff`,
		"a\xc3": `a\xc3`, "\xed\xa0\x80": `\xed\xa0\x80`,
	}
	seen := map[string]bool{}
	for name, want := range shown {
		require.Equal(t, want, stats.TagText(name))
		require.Equal(t, name, stats.TagName(want))
		require.False(t, seen[want], "%q looks like another", name)
		seen[want] = true
	}
}

func TestPoolsAreNoLongerUntracked(t *testing.T) {
	d := stats.Device{UntrackedBytes: 7}
	d.AddPools(3)
	require.Equal(t, stats.Device{PoolBytes: 3, UntrackedBytes: 4}, d)
	d.AddPools(5)
	require.Equal(t, stats.Device{PoolBytes: 8}, d, "the figures come from different moments")
}
