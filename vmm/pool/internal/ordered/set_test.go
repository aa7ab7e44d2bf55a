package ordered

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
}

// check walks the tree: every node but the root is full enough, keys ascend and lie within the bounds
// that the nodes above give, the links of a level run from left to right, no node is lost.
func check(t *testing.T, s *Set) {
	t.Helper()
	if s.root == 0 {
		return
	}
	reached, keys := 0, 0
	previous := make([]uint32, s.levels+1)
	var walk func(at uint32, level int, low, high *Key)
	walk = func(at uint32, level int, low, high *Key) {
		reached++
		n := &s.nodes[at]
		if at != s.root {
			require.GreaterOrEqual(t, int(n.count), minimum)
		}
		if before := previous[level]; before != 0 {
			require.Equal(t, at, s.nodes[before].next)
		}
		previous[level] = at
		for i := range int(n.count) {
			e := &n.entries[i]
			if i > 0 {
				require.Negative(t, compare(n.entries[i-1].key, e.key))
			}
			if low != nil {
				require.False(t, e.key.below(*low))
			}
			if high != nil {
				require.True(t, e.key.below(*high))
			}
			if level == 0 {
				keys++
				continue
			}
			above := high
			if i+1 < int(n.count) {
				above = &n.entries[i+1].key
			}
			walk(e.value, level-1, &e.key, above)
		}
	}
	walk(s.root, s.levels, nil, nil)
	for _, last := range previous {
		require.Zero(t, s.nodes[last].next)
	}
	for at := s.vacant; at != 0; at = s.nodes[at].next {
		reached++
	}
	require.Equal(t, len(s.nodes)-1, reached)
	require.Equal(t, s.Len(), keys)
}

func TestSetAgainstModel(t *testing.T) {
	for _, spread := range []uint64{4, 1000, 1 << 40} { // many equal majors, some, none
		t.Run(fmt.Sprint(spread), func(t *testing.T) {
			random := rand.New(rand.NewPCG(spread, 1))
			var s Set
			var model []Key
			values := map[Key]uint32{}
			key := func() Key { return Key{random.Uint64N(spread), random.Uint64N(5000)} }
			for step := range 40_000 {
				growing := step/5000%2 == 0
				k := key()
				i, found := slices.BinarySearchFunc(model, k, compare)
				if !growing && len(model) > 0 && random.IntN(4) > 0 { // so that most removals hit
					i = random.IntN(len(model))
					k, found = model[i], true
				}
				switch {
				case !growing:
					require.Equal(t, found, s.Remove(k))
					if found {
						model = slices.Delete(model, i, i+1)
					}
				case !found:
					values[k] = random.Uint32()
					s.Insert(k, values[k])
					model = slices.Insert(model, i, k)
				}
				require.Equal(t, len(model), s.Len())

				wanted := key()
				i, _ = slices.BinarySearchFunc(model, wanted, compare)
				got, value, ok := s.Ceiling(wanted)
				require.Equal(t, i < len(model), ok)
				if ok {
					require.Equal(t, model[i], got)
					require.Equal(t, values[got], value)
				}
				last, value, ok := s.Last()
				require.Equal(t, len(model) > 0, ok)
				if ok {
					require.Equal(t, model[len(model)-1], last)
					require.Equal(t, values[last], value)
				}
				if step%500 == 0 {
					check(t, &s)
					for k, value := range s.From(wanted) {
						require.Equal(t, model[i], k)
						require.Equal(t, values[k], value)
						i++
					}
					require.Equal(t, len(model), i)
				}
			}
		})
	}
}

func TestSetFromStops(t *testing.T) {
	var s Set
	for i := range uint64(100) {
		s.Insert(Key{i, 0}, uint32(i))
	}
	var got []uint32
	for _, value := range s.From(Key{50, 1}) {
		if got = append(got, value); len(got) == 3 {
			break
		}
	}
	require.Equal(t, []uint32{51, 52, 53}, got)
}

func TestSetReusesItsNodes(t *testing.T) {
	var s Set
	fill := func() {
		for i := range uint64(10_000) {
			s.Insert(Key{i, i}, 0)
		}
		for i := range uint64(10_000) {
			require.True(t, s.Remove(Key{i, i}))
		}
	}
	fill()
	require.Zero(t, testing.AllocsPerRun(3, fill))
}

func BenchmarkSet(b *testing.B) {
	for size := 10; size <= 1_000_000; size *= 10 {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			random := rand.New(rand.NewPCG(1, 2))
			var s Set
			for range size {
				s.Insert(Key{random.Uint64N(1 << 20), random.Uint64()}, 0)
			}
			b.ReportAllocs()
			for b.Loop() { // as an allocator does: take the best fit, put back another
				k, _, ok := s.Ceiling(Key{random.Uint64N(1 << 19), 0})
				if !ok {
					k, _, _ = s.Last()
				}
				s.Remove(k)
				s.Insert(Key{random.Uint64N(1 << 20), random.Uint64()}, 0)
			}
		})
	}
}
