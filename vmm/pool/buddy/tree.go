package buddy

import (
	"iter"
	"math/bits"
)

// tree has the free blocks of all roots, in units of the smallest block. It is implicit: block n of an order covers the
// units from n<<order on, and blocks 2n and 2n+1 of the order below are its halves. One bit says that a block is free.
// A root of 2^h units has the units from slot<<h on; those past the end of its capacity are never free.
type tree []bitset // by order, up to h

// grow makes room for this many roots.
func (t tree) grow(roots uint64) {
	for order := range t {
		t[order].grow(roots << (len(t) - 1 - order))
	}
}

// take returns the first unit of the order's lowest free block, or splits the lowest of the next order that has one.
func (t tree) take(order int) (unit uint64, found bool) {
	for from := order; from < len(t); from++ {
		n, found := t[from].lowest()
		if !found {
			continue
		}
		t[from].clear(n)
		for ; from > order; from-- {
			n *= 2
			t[from-1].set(n + 1)
		}
		return n << order, true
	}
	return 0, false
}

// give makes a range of units free and merges each of its blocks with its free buddies.
func (t tree) give(unit, count uint64) {
	for n, order := range blocks(unit, count) {
		for order < len(t)-1 && t[order].has(n^1) {
			t[order].clear(n ^ 1)
			n /= 2
			order++
		}
		t[order].set(n)
	}
}

// withdraw takes a root that is all free out of the tree.
func (t tree) withdraw(unit, count uint64) {
	for n, order := range blocks(unit, count) {
		t[order].clear(n)
	}
}

// largest returns the units of the largest free block.
func (t tree) largest() uint64 {
	for order := len(t) - 1; order >= 0; order-- {
		if _, found := t[order].lowest(); found {
			return 1 << order
		}
	}
	return 0
}

// blocks cuts a range of units into blocks, as large as their alignment allows.
func blocks(unit, count uint64) iter.Seq2[uint64, int] {
	return func(yield func(n uint64, order int) bool) {
		for count > 0 {
			order := min(bits.TrailingZeros64(unit), bits.Len64(count)-1)
			if !yield(unit>>order, order) {
				return
			}
			unit += 1 << order
			count -= 1 << order
		}
	}
}

// bitset is a set of numbers that finds the lowest quickly: above the bits lie layers, up to one of a single word,
// whose bit i is set if word i of the layer below is not 0.
type bitset [][]uint64

// grow makes room for the numbers below n.
func (s *bitset) grow(n uint64) {
	for layer := 0; ; layer++ {
		if layer == len(*s) {
			*s = append(*s, nil)
		}
		n = (n + 63) / 64
		words := &(*s)[layer]
		*words = append(*words, make([]uint64, n-min(n, uint64(len(*words))))...)
		if layer > 0 && (*s)[layer-1][0] != 0 {
			(*words)[0] |= 1 // the layer below may have been the top until now
		}
		if n == 1 {
			return
		}
	}
}

func (s bitset) has(n uint64) bool { return s[0][n/64]>>(n%64)&1 != 0 }

func (s bitset) set(n uint64) {
	for _, layer := range s {
		word := &layer[n/64]
		before := *word
		*word |= 1 << (n % 64)
		if before != 0 {
			return
		}
		n /= 64
	}
}

func (s bitset) clear(n uint64) {
	for _, layer := range s {
		word := &layer[n/64]
		*word &^= 1 << (n % 64)
		if *word != 0 {
			return
		}
		n /= 64
	}
}

func (s bitset) lowest() (n uint64, found bool) {
	top := len(s) - 1
	if top < 0 || s[top][0] == 0 {
		return 0, false
	}
	for i := top; i >= 0; i-- {
		n = n*64 + uint64(bits.TrailingZeros64(s[i][n]))
	}
	return n, true
}
