package space

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// play takes and gives back ranges in a space of granules, none longer than most, as bytes say, and notes each
// granule's owner.
func play(t *testing.T, granules, most uint32, bytes []byte) {
	parts := newFit(granules)
	owner := make([]*block, granules)
	own := func(s *block, by *block) {
		for g := s.start; g < s.start+s.count; g++ {
			if by != nil && owner[g] != nil {
				t.Fatalf("granule %d is given twice", g)
			}
			owner[g] = by
		}
	}
	var all []*block
	var used uint32
	for at := 0; at+1 < len(bytes); at += 2 {
		n := uint32(bytes[at+1])
		if bytes[at]%3 == 0 && len(all) > 0 {
			i := int(n) % len(all)
			s := all[i]
			all = slices.Delete(all, i, i+1)
			own(s, nil)
			used -= s.count
			parts.release(s)
		} else if s := parts.allocate(n%most + 1); s != nil {
			if s.count != n%most+1 || s.start+s.count > granules {
				t.Fatalf("%d granules at %d for %d", s.count, s.start, n%most+1)
			}
			own(s, s)
			all, used = append(all, s), used+s.count
		} else if longest(owner) > n%most {
			t.Fatalf("no room for %d granules, where %d are free", n%most+1, longest(owner))
		}
		if len(all) > 0 && (granules <= 512 || at%64 == 0) {
			require.NoError(t, parts.check(granules, used, func(s *block) bool { return owner[s.start] == s }))
		}
	}
	for _, s := range all {
		parts.release(s)
	}
	require.NotNil(t, parts.allocate(granules), "everything came back as one")
}

// longest is the most granules in a row without an owner.
func longest(owner []*block) (most uint32) {
	run := uint32(0)
	for _, s := range owner {
		if run++; s != nil {
			run = 0
		}
		most = max(most, run)
	}
	return most
}

// A search does not look at blocks that are too small, however many there are, and a larger count is in no earlier bin.
func TestBins(t *testing.T) {
	for count := uint32(1); count < 1<<22; count += 1 + count/64 {
		require.LessOrEqual(t, bin(count), bin(count+1))
	}
	parts := newFit(3000)
	var all []*block
	for range 1000 {
		all = append(all, parts.allocate(2), parts.allocate(1))
	}
	for i := 0; i < len(all); i += 2 {
		parts.release(all[i])
	}
	require.Nil(t, parts.bins[bin(3)])
	require.Nil(t, parts.search(3))
	require.NotNil(t, parts.search(2))
}

func FuzzFit(f *testing.F) {
	f.Fuzz(func(t *testing.T, bytes []byte) { play(t, 512, 256, bytes) })
}

func TestFitAtRandom(t *testing.T) {
	for seed := range uint64(24) {
		random := rand.NewChaCha8([32]byte{byte(seed)})
		bytes := make([]byte, 3000)
		_, _ = random.Read(bytes)
		play(t, []uint32{3000, 1, 7, 8, 33, 1000}[seed%6], 1<<(2*(seed/6)+2), bytes)
	}
}

func BenchmarkFitAmongAMillion(b *testing.B) {
	p := newFit(4 << 20)
	live := make([]*block, 1<<20)
	for i := range live {
		live[i] = p.allocate(1 + uint32(i%3))
	}
	random := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		i := random.IntN(len(live))
		count := live[i].count
		p.release(live[i])
		live[i] = p.allocate(count)
	}
}
