package buddy

import "math/bits"

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
