package vmm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm"
)

// Small allocations that come and go at random find the room that others have left, whatever part of a granule they
// take.
func TestSlabsAreUsedAgain(t *testing.T) {
	for _, size := range []uint64{64 * kib, 132 * kib, 200 * kib, 500 * kib} {
		t.Run(fmt.Sprint(size/kib), func(t *testing.T) {
			_, _, e := simulatedWith(t, 1, "64G")
			random := rand.New(rand.NewPCG(1, 2))
			const live = 300
			r := vmm.Request{Size: size, Tag: "t"}
			all := mallocs(t, e, live, r)
			first := tagStats(t, e, "t").PhysicalBytes
			for range 20 * live {
				i := random.IntN(live)
				require.NoError(t, e.FreeIdle(all[i], false))
				a, err := e.Malloc(r)
				require.NoError(t, err)
				all[i] = a
			}
			require.LessOrEqual(t, tagStats(t, e, "t").PhysicalBytes, first+first/3)
		})
	}
	t.Run("mixed", func(t *testing.T) {
		_, _, e := simulatedWith(t, 1, "64G")
		random := rand.New(rand.NewPCG(1, 2))
		sizes := make([]uint64, 300)
		all := make([]uintptr, len(sizes))
		for n := range 20 * len(sizes) {
			i := random.IntN(len(sizes))
			if all[i] != 0 {
				require.NoError(t, e.FreeIdle(all[i], false))
			}
			sizes[i] = uint64(1+random.IntN(1000)) * kib
			a, err := e.Malloc(vmm.Request{Size: sizes[i], Tag: "t"})
			require.NoError(t, err)
			if all[i] = a; n%1000 == 999 {
				held := tagStats(t, e, "t")
				require.LessOrEqual(t, held.PhysicalBytes, held.LiveBytes*7/4)
			}
		}
		frees(t, e, all...)
	})
}
