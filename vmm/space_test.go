package vmm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// check walks the spans by address: they tile the space, and no two free ones touch.
func check(t *testing.T, first *span, granules uint32) {
	t.Helper()
	var next uint32
	for s := first; s != nil; s = s.next {
		require.Equal(t, next, s.start)
		require.Positive(t, s.count)
		if s.next != nil {
			require.Same(t, s, s.next.previous)
			require.False(t, s.free && s.next.free, "neighbours at %d not merged", s.start)
		}
		next += s.count
	}
	require.Equal(t, granules, next)
}

func firstSpan(s *span) *span {
	for s.previous != nil {
		s = s.previous
	}
	return s
}

func TestSpaceAgainstModel(t *testing.T) {
	for seed := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, 1))
		granules := []uint32{3000, 1, 7, 8, 33, 1000}[seed%6]
		p := newSpace(granules)
		used := make([]bool, granules)
		var live []*span
		free := uint32(granules)
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
				check(t, firstSpan(live[0]), granules)
			}
		}
		for _, s := range live {
			p.release(s)
		}
		whole := p.allocate(granules)
		require.NotNil(t, whole, "everything came back as one")
	}
}

func BenchmarkSpaceAmongAMillion(b *testing.B) {
	p := newSpace(4 << 20)
	live := make([]*span, 1<<20)
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
