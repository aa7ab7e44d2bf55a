package store

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ranges are compared with sets of bytes.
func TestRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	const size = 40
	list := func() (list []Range) {
		for range random.IntN(6) {
			offset := random.Uint64N(size)
			list = append(list, Range{Offset: offset, Size: random.Uint64N(size - offset + 1)})
		}
		return list
	}
	set := func(ranges []Range) (set [size]bool) {
		for _, r := range ranges {
			for at := r.Offset; at < r.Offset+r.Size; at++ {
				set[at] = true
			}
		}
		return set
	}
	check := func(wanted [size]bool, ranges Ranges) {
		count, end := uint64(0), uint64(0)
		for i, r := range ranges {
			require.True(t, r.Size > 0 && (i == 0 || r.Offset > end), "%v", ranges)
			end = r.Offset + r.Size
		}
		for _, in := range wanted {
			if in {
				count++
			}
		}
		require.Equal(t, wanted, set(ranges))
		require.Equal(t, count, ranges.Bytes())
	}
	for range 10_000 {
		a, b := list(), list()
		check(set(a), Union(a))
		wanted, taken := set(a), set(b)
		for i := range wanted {
			wanted[i] = wanted[i] && !taken[i]
		}
		check(wanted, Union(a).Without(Union(b)))
		if begin := random.Uint64N(size); len(b) > 0 {
			whole := Range{Offset: begin, Size: random.Uint64N(size - begin + 1)}
			wanted, others := set(a), Union(b).Without(Ranges{{0, begin}, {whole.end(), size}})
			for i, in := range set(others) {
				if uint64(i) >= begin && uint64(i) < whole.end() {
					wanted[i] = in
				}
			}
			check(wanted, Union(a).Replace(whole, others))
		}
	}
}
