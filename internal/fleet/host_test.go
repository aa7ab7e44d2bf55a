package fleet

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/machine/hostmemory"
)

// Reserved memory serves the devices of its own NUMA node alone, until it is taken.
func TestReservedMemoryServesItsNode(t *testing.T) {
	if hostmemory.Available("self", nil) == math.MaxUint64 {
		t.Skip("this machine gets memory as it uses it")
	}
	const most = 1 << 50
	host := NewHost(nil)
	host.Reserved = NodeBytes{1: most}
	process := &Process{Here: os.Getpid()}
	require.Less(t, host.Available(process, NodeBytes{0: most}), uint64(most))
	require.GreaterOrEqual(t, host.Available(process, NodeBytes{1: most}), uint64(most))
	host.Take(process, NodeBytes{1: most})
	require.Less(t, host.Available(process, NodeBytes{1: most}), uint64(most))
}
