package ordered

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// check: keys ascend and are in their bins, no run is too long, none but a bin's only one is empty, and the bits say
// which bins have keys.
func check(t *testing.T, s *Set) {
	t.Helper()
	var keys []uint64
	for word := range s.filled {
		require.Equal(t, s.filled[word] != 0, s.words>>word&1 == 1)
	}
	for b, runs := range s.bins {
		before := len(keys)
		for _, n := range runs {
			require.True(t, len(n) > 0 || len(runs) == 1)
			require.LessOrEqual(t, len(n), width)
			for _, pair := range n {
				require.Equal(t, b, binOf(pair.key))
				keys = append(keys, pair.key)
			}
		}
		require.Equal(t, len(keys) > before, s.filled[b/64]>>(b%64)&1 == 1)
	}
	require.True(t, slices.IsSorted(keys))
	require.Len(t, keys, s.Len())
}

func TestSetAgainstModel(t *testing.T) {
	if testing.Short() {
		t.Skip("-short is for the race detector, and there is one thread")
	}
	for _, spread := range []uint64{5000, 1 << 55, 1 << 59, ^uint64(0)} {
		t.Run(fmt.Sprintf("%#x", spread), func(t *testing.T) {
			random := rand.New(rand.NewPCG(spread, 1))
			var s Set
			var model []uint64
			values := map[uint64]uint32{}
			for step := range 16_000 {
				growing := step/4000%2 == 0
				k := random.Uint64N(spread)
				i, found := slices.BinarySearch(model, k)
				if !growing && len(model) > 0 && random.IntN(4) > 0 { // so that most removals hit
					i = random.IntN(len(model))
					k, found = model[i], true
				}
				switch {
				case !growing:
					if found {
						s.Remove(k)
						model = slices.Delete(model, i, i+1)
					}
				case !found:
					values[k] = random.Uint32()
					s.Insert(k, values[k])
					model = slices.Insert(model, i, k)
				}
				require.Equal(t, len(model), s.Len())

				wanted := random.Uint64N(spread)
				i, _ = slices.BinarySearch(model, wanted)
				got, ok := s.Ceiling(wanted)
				require.Equal(t, i < len(model), ok)
				if ok {
					require.Equal(t, model[i], got.Key)
					require.Equal(t, values[got.Key], got.Value)
					if !growing && random.IntN(2) == 0 {
						s.Take(got)
						model = slices.Delete(model, i, i+1)
					}
				}
				last, value, ok := s.Last()
				require.Equal(t, len(model) > 0, ok)
				if ok {
					require.Equal(t, model[len(model)-1], last)
					require.Equal(t, values[last], value)
				}
				if step%500 == 0 {
					check(t, &s)
					for e, found := s.Ceiling(wanted); found; e, found = s.Ceiling(e.Key + 1) {
						require.Equal(t, model[i], e.Key)
						require.Equal(t, values[e.Key], e.Value)
						i++
					}
					require.Equal(t, len(model), i)
				}
			}
		})
	}
}

// TestFitOrdersBlocks: by size, then address, at the ends of the range too.
func TestFitOrdersBlocks(t *testing.T) {
	type block struct {
		size    uint64
		address uintptr
	}
	random := rand.New(rand.NewPCG(1, 2))
	blocks := []block{{1 << 62, 0}, {1 << 62, 1 << 62}, {1<<62 - 256, 1 << 63}}
	for at := ^uintptr(0) &^ 255; len(blocks) < 20_000; { // side by side, down from the last address
		size := uint64(256) << random.IntN(4)
		if random.IntN(2) == 0 {
			size = 256 * (1 + random.Uint64N(1<<random.IntN(20)))
		}
		at -= uintptr(size)
		blocks = append(blocks, block{size, at})
	}
	slices.SortFunc(blocks, func(a, b block) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.address, b.address))
	})
	for i, b := range blocks {
		require.LessOrEqual(t, Fit(b.size, 0), Fit(b.size, b.address))
		if i > 0 {
			before := blocks[i-1]
			require.Less(t, Fit(before.size, before.address), Fit(b.size, b.address), "%v, %v", before, b)
			if before.size < b.size {
				require.Less(t, Fit(before.size, before.address), Fit(b.size, 0))
			}
		}
	}
}

func BenchmarkSet(b *testing.B) {
	for size := 10; size <= 1_000_000; size *= 10 {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			random := rand.New(rand.NewPCG(1, 2))
			var s Set
			block := func(address uint64) uint64 {
				return Fit(512+random.Uint64N(1<<(9+random.IntN(11))), uintptr(address))
			}
			for i := range size {
				s.Insert(block(uint64(i)<<21), 0)
			}
			address := uint64(size) << 21
			b.ReportAllocs()
			for b.Loop() { // as an allocator does: take the best fit, put back another
				e, ok := s.Ceiling(block(0))
				if ok {
					s.Take(e)
				} else {
					k, _, _ := s.Last()
					s.Remove(k)
				}
				address += 1 << 21
				s.Insert(block(address), 0)
			}
		})
	}
}
