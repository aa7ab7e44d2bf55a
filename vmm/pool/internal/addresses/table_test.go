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
			}
			for range 3 {
				a = address()
				want, known := model[a]
				got, found := table.Find(a)
				require.Equal(t, known, found)
				require.Equal(t, want, got)
			}
		}
		require.Equal(t, model, maps.Collect(table.All()))
		require.Equal(t, len(model), table.Len())
	}
}

func TestEmptyTable(t *testing.T) {
	var table addresses.Table[int]
	_, found := table.Remove(512)
	require.False(t, found)
	_, found = table.Find(512)
	require.False(t, found)
	for range table.All() {
		t.Fatal("an entry in an empty table")
	}
}

func TestAddressZeroIsNeverFound(t *testing.T) {
	var table addresses.Table[int]
	table.Insert(512, 1)
	_, found := table.Find(0)
	require.False(t, found)
	_, found = table.Remove(0)
	require.False(t, found)
	_, found = table.Find(512)
	require.True(t, found)
}
