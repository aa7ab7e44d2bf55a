package buddy

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBitsetAgainstModel(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		size := 1 + random.Uint64N(1<<random.IntN(20))
		var set bitset
		set.grow(size)
		model := map[uint64]bool{}
		for range 300 {
			n := random.Uint64N(size)
			switch random.IntN(5) {
			case 0, 1:
				set.set(n)
				model[n] = true
			case 2, 3:
				if lowest, found := set.lowest(); found && random.IntN(2) == 0 {
					n = lowest
				}
				set.clear(n)
				delete(model, n)
			case 4:
				size += random.Uint64N(min(size, 1<<14))
				set.grow(size)
			}
			require.Equal(t, model[n], set.has(n))
			want, some := ^uint64(0), false
			for m := range model {
				want, some = min(want, m), true
			}
			got, found := set.lowest()
			require.Equal(t, some, found)
			if some {
				require.Equal(t, want, got)
			}
		}
	}
}
