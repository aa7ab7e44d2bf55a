package addresses_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool/internal/addresses"
)

func TestTableAgainstMap(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		var table addresses.Table[uint64]
		model := map[uintptr]uint64{}
		for _, a := range []uintptr{0, 512} { // of an empty table; 0 is never found
			_, found := table.Remove(a)
			require.False(t, found)
			_, found = table.Find(a)
			require.False(t, found)
			require.Empty(t, maps.Collect(table.All()))
		}
		// Few addresses, so that they come back, of a stride like those of a pool.
		address := func() uintptr { return 512 * uintptr(random.IntN(1<<(1+seed/2))) }
		for range 5000 {
			a := address()
			_, known := model[a]
			switch {
			case known && random.IntN(2) == 0:
				value, found := table.Remove(a)
				require.True(t, found)
				require.Equal(t, model[a], value)
				delete(model, a)
			case !known && a != 0:
				value := random.Uint64()
				table.Insert(a, value)
				model[a] = value
			default:
				_, found := table.Remove(^a)
				require.False(t, found)
				_, found = table.Remove(0)
				require.False(t, found)
			}
			for _, a := range []uintptr{0, address(), address(), address()} {
				want, known := model[a]
				got, found := table.Find(a)
				if got != want || found != known {
					t.Fatalf("%#x: %d, %v, not %d, %v", a, got, found, want, known)
				}
			}
		}
		require.Equal(t, model, maps.Collect(table.All()))
		require.Equal(t, len(model), table.Len())
	}
}
