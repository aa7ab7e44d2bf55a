package vmm

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Segments by address are compared with a sorted list. However many there are, each change moves a run at most.
func TestByAddress(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var list byAddress
	var sorted []*segment
	for step := range 20_000 {
		address := uintptr(random.IntN(30_000))
		at, found := slices.BinarySearchFunc(sorted, address, compareAddress)
		switch {
		case found && step%2 == 0:
			list.remove(sorted[at])
			sorted = slices.Delete(sorted, at, at+1)
			found = false
		case !found && step%5 > 0:
			s := &segment{address: address}
			list.insert(s)
			sorted = slices.Insert(sorted, at, s)
		}
		at, _ = slices.BinarySearchFunc(sorted, address, compareAddress)
		var before, from *segment
		if at > 0 {
			before = sorted[at-1]
		}
		if at < len(sorted) {
			from = sorted[at]
		}
		require.Same(t, before, list.before(address))
		require.Same(t, from, list.from(address))
	}
	require.Equal(t, sorted, slices.Concat(list.runs...))
	require.Greater(t, len(sorted), 8*longestRun)
	for _, run := range list.runs {
		require.LessOrEqual(t, len(run), longestRun)
	}
	for _, s := range sorted {
		list.remove(s)
	}
	require.Empty(t, list.runs)
}
