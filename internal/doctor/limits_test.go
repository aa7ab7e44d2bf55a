package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLockedMemory(t *testing.T) {
	for _, c := range []struct {
		limit    uint64
		adapters int
		want     int
	}{
		{8 << 20, 2, 1},
		{8 << 20, 0, 0}, // nothing but CUDA pins memory here
	} {
		r := &Report{}
		r.examineLockedMemory(c.limit, c.adapters)
		require.Len(t, r.Findings, c.want)
		if c.want > 0 {
			require.Equal(t, Warning, r.Findings[0].Severity)
			require.Contains(t, r.Findings[0].What, "limited to 8.00 MiB")
			require.Contains(t, r.Findings[0].Do, "ulimit -l")
		}
	}
}
