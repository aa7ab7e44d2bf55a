package space

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTLSFAgainstModel(t *testing.T) {
	for seed := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, 1))
		granules := []uint32{3000, 1, 7, 8, 33, 1000}[seed%6]
		p := newTLSF(granules)
		used := make([]bool, granules)
		var live []*block
		free := granules
		for step := range 1500 {
			if random.IntN(5) < 3 || len(live) == 0 {
				count := 1 + uint32(random.IntN(1<<random.IntN(9)))
				s := p.allocate(count)
				if s == nil {
					run, longest := uint32(0), uint32(0)
					for _, u := range used {
						if u {
							run = 0
							continue
						}
						run++
						longest = max(longest, run)
					}
					require.Less(t, longest, count, "refused although it fits")
					continue
				}
				require.Equal(t, count, s.count)
				for g := s.start; g < s.start+count; g++ {
					if used[g] {
						t.Fatalf("granule %d handed out twice", g)
					}
					used[g] = true
				}
				live = append(live, s)
				free -= count
			} else {
				i := random.IntN(len(live))
				s := live[i]
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
				for g := s.start; g < s.start+s.count; g++ {
					used[g] = false
				}
				free += s.count
				p.release(s)
			}
			if len(live) > 0 && step%32 == 0 {
				require.NoError(t, p.check(granules, granules-free, func(b *block) bool { return slices.Contains(live, b) }))
			}
		}
		for _, s := range live {
			p.release(s)
		}
		whole := p.allocate(granules)
		require.NotNil(t, whole, "everything came back as one")
	}
}

func BenchmarkTLSFAmongAMillion(b *testing.B) {
	p := newTLSF(4 << 20)
	live := make([]*block, 1<<20)
	for i := range live {
		live[i] = p.allocate(1 + uint32(i%3))
	}
	random := rand.New(rand.NewPCG(1, 2))
	b.ResetTimer()
	for range b.N {
		i := random.IntN(len(live))
		count := live[i].count
		p.release(live[i])
		live[i] = p.allocate(count)
	}
}
