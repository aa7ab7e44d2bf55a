package caching

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBinsAgainstModel compares bins, and the trees in them, with a sorted slice.
func TestBinsAgainstModel(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 2))
		s, p := &bins{}, &Pool{}
		var model []*block
		order := func(x, y *block) int {
			return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.address, y.address))
		}
		for step := range 4000 {
			size := minBlock * (1 + random.Uint64N(1<<random.IntN(50)))
			if len(model) < 300 && random.IntN(5) < 3 {
				b := p.newBlock()
				b.size, b.address = size, uintptr(step)*minBlock
				if random.IntN(2) == 0 {
					b.size = minBlock << random.IntN(4) // many of the same size
				}
				s.insert(b)
				at, _ := slices.BinarySearchFunc(model, b, order)
				model = slices.Insert(model, at, b)
			} else if len(model) > 0 {
				at := random.IntN(len(model))
				s.remove(model[at])
				p.recycle(model[at])
				model = slices.Delete(model, at, at+1)
			}
			at, _ := slices.BinarySearchFunc(model, &block{size: size}, order)
			if at < len(model) {
				require.Same(t, model[at], s.ceiling(size))
			} else {
				require.Nil(t, s.ceiling(size))
			}
			if len(model) > 0 {
				require.Same(t, model[len(model)-1], s.last())
			} else {
				require.Nil(t, s.last())
				require.Zero(t, s.first)
			}
			if step%100 == 0 {
				var all []*block
				s.each(func(b *block) { all = append(all, b) })
				require.Equal(t, model, all)
			}
		}
	}
}

// TestTreeStaysShallow: also when the keys come in order, and go and come in part.
func TestTreeStaysShallow(t *testing.T) {
	const count = 1 << 16
	p, all := &Pool{}, &tree{}
	var blocks []*block
	for i := range count {
		b := p.newBlock()
		b.size, b.address = minBlock, uintptr(i)
		blocks = append(blocks, b)
		all.insert(b)
	}
	for i := 0; i < count; i += 3 {
		all.remove(blocks[i])
		all.insert(blocks[i])
	}
	var depth func(*block) int
	depth = func(b *block) int {
		if b == nil {
			return 0
		}
		return 1 + max(depth(b.left), depth(b.right))
	}
	require.Less(t, depth(all.root), 4*bits.Len(count))
}

func TestIndexAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 2))
	x, model := newIndex(4), map[uintptr]*block{}
	for range 200000 {
		b := &block{address: minBlock * uintptr(random.IntN(3000))}
		found, at := x.find(b.address)
		require.Same(t, model[b.address], found)
		if found != nil {
			x.remove(at)
			delete(model, b.address)
		} else if random.IntN(4) > 0 {
			x.insert(b)
			model[b.address] = b
		}
		require.Equal(t, len(model), x.count)
		require.LessOrEqual(t, 2*x.count, len(x.slots))
	}
	for address, b := range model {
		found, _ := x.find(address)
		require.Same(t, b, found)
	}
}
