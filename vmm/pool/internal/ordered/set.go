// Package ordered has an ordered set for best fit, which finds, removes and returns the first key not below a wanted
// one. The high bits of a key choose a bin, and each bin is a list of short sorted runs, mostly of one.
package ordered

import (
	"math/bits"
	"slices"
	"sort"
)

// Fit returns the key of a free block: it orders blocks that do not overlap by size, then by address. It needs only the
// address bits that the size leaves open, because two blocks of at least 2^n bytes begin at least 2^n bytes apart. The
// size is a multiple of 256 bytes, and not 0.
func Fit(size uint64, address uintptr) uint64 {
	units := size / 256
	log := bits.Len64(units) - 1
	return uint64(log)<<56 + units<<(56-log) + uint64(address)/256>>log
}

// Set maps keys to values in the order of the keys. The zero value is an empty set.
type Set struct {
	length int
	bins   [bins][]run       // only a bin's only run may be empty
	filled [bins / 64]uint64 // bit b: there are keys in bins[b]
	words  uint8             // bit w: filled[w] is not 0
	spare  []run             // dropped ones, so that a steady state makes little garbage
}

// run is a part of a bin's pairs, in the order of their keys.
type run []pair

type pair struct {
	key   uint64
	value uint32
}

// Entry is a key of the set, with its value.
type Entry struct {
	Key          uint64
	Value        uint32
	bin, run, at int // where it is until the set changes
}

const (
	bins     = 512
	binShift = 53 // for a Fit: eight to every doubling of the size
	width    = 64 // the most keys in a run
)

func binOf(key uint64) int { return int(min(key>>binShift, bins-1)) }

func (s *Set) Len() int { return s.length }

// find returns where a key is, or belongs, in the runs of its bin.
func find(runs []run, key uint64) (r, at int) {
	if len(runs) > 1 {
		r = sort.Search(len(runs)-1, func(i int) bool { return runs[i+1][0].key > key })
	}
	n := runs[r]
	return r, sort.Search(len(n), func(i int) bool { return n[i].key >= key })
}

// Insert adds a key, which must not be in the set.
func (s *Set) Insert(key uint64, value uint32) {
	s.length++
	b := binOf(key)
	if s.bins[b] == nil {
		s.bins[b] = []run{s.fresh()}
	}
	s.filled[b/64] |= 1 << (b % 64)
	s.words |= 1 << (b / 64)
	r, at := find(s.bins[b], key)
	if n := s.bins[b][r]; len(n) == width {
		const half = width / 2
		s.bins[b][r] = n[:half]
		s.bins[b] = slices.Insert(s.bins[b], r+1, append(s.fresh(), n[half:]...))
		if at > half {
			r, at = r+1, at-half
		}
	}
	s.bins[b][r] = slices.Insert(s.bins[b][r], at, pair{key, value})
}

// Remove takes out a key, which must be in the set.
func (s *Set) Remove(key uint64) {
	b := binOf(key)
	r, at := find(s.bins[b], key)
	s.Take(Entry{bin: b, run: r, at: at})
}

// Take takes out the entry that Ceiling has just returned. It joins a run with the next where both are small.
func (s *Set) Take(e Entry) {
	s.length--
	b, runs := e.bin, s.bins[e.bin]
	n, next := slices.Delete(runs[e.run], e.at, e.at+1), e.run+1
	runs[e.run] = n
	switch {
	case next < len(runs) && len(n)+len(runs[next]) <= width/2:
		runs[e.run] = append(n, runs[next]...)
		s.drop(b, next)
	case len(n) == 0 && len(runs) > 1:
		s.drop(b, e.run)
	case len(n) == 0:
		if s.filled[b/64] &^= 1 << (b % 64); s.filled[b/64] == 0 {
			s.words &^= 1 << (b / 64)
		}
	}
}

func (s *Set) fresh() run {
	if len(s.spare) == 0 {
		return make(run, 0, width)
	}
	last := len(s.spare) - 1
	n := s.spare[last]
	s.spare = s.spare[:last]
	return n
}

func (s *Set) drop(b, r int) {
	s.spare = append(s.spare, s.bins[b][r][:0])
	s.bins[b] = slices.Delete(s.bins[b], r, r+1)
}

// Ceiling returns the first key that is not below k, with its value.
func (s *Set) Ceiling(k uint64) (e Entry, found bool) {
	b, r, at := binOf(k), 0, 0
	if runs := s.bins[b]; runs != nil {
		if r, at = find(runs, k); at == len(runs[r]) {
			r, at = r+1, 0
		}
	}
	if r == len(s.bins[b]) || at == len(s.bins[b][r]) {
		if b, found = s.behind(b); !found {
			return Entry{}, false
		}
		r, at = 0, 0
	}
	n := s.bins[b][r][at]
	return Entry{n.key, n.value, b, r, at}, true
}

// behind returns the first bin behind one that has keys.
func (s *Set) behind(bin int) (int, bool) {
	word := bin / 64
	above := s.filled[word] >> (bin % 64) >> 1 << 1 << (bin % 64)
	if above == 0 {
		words := s.words >> word >> 1 << 1 << word
		if words == 0 {
			return 0, false
		}
		word = bits.TrailingZeros8(words)
		above = s.filled[word]
	}
	return 64*word + bits.TrailingZeros64(above), true
}

// Last returns the greatest key and its value.
func (s *Set) Last() (key uint64, value uint32, found bool) {
	if s.words == 0 {
		return 0, 0, false
	}
	word := bits.Len8(s.words) - 1
	runs := s.bins[64*word+bits.Len64(s.filled[word])-1]
	n := runs[len(runs)-1]
	return n[len(n)-1].key, n[len(n)-1].value, true
}
