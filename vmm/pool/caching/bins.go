package caching

import (
	"math/bits"

	"tms/vmm/pool"
)

// bins holds the free blocks of one stream in a pool, by size and address: a tree for each eighth of
// a power of two, so that trees are small, and bitmaps of those that are not empty.
type bins struct {
	pool     *blockPool
	stream   pool.Stream
	segments int // of the stream in the pool

	first  uint64            // bit c: second[c] is not 0
	second [binClasses]uint8 // bit i: trees[c][i] is not empty
	trees  [binClasses][8]tree
}

// binClasses is enough for sizes up to 2^61, in units of 512 bytes.
const binClasses = 50

// bin is where blocks of a size are.
func bin(size uint64) (class, index int) {
	units := size / minBlock
	if units < 8 {
		return 0, int(units)
	}
	log := bits.Len64(units) - 1
	return log - 2, int(units>>(log-3)) & 7
}

func (s *bins) insert(b *block) {
	class, i := bin(b.size)
	s.trees[class][i].insert(b)
	s.second[class] |= 1 << i
	s.first |= 1 << class
}

func (s *bins) remove(b *block) {
	class, i := bin(b.size)
	t := &s.trees[class][i]
	t.remove(b)
	if t.root != nil {
		return
	}
	if s.second[class] &^= 1 << i; s.second[class] == 0 {
		s.first &^= 1 << class
	}
}

// ceiling returns the first block of at least a size, nil when there is none.
func (s *bins) ceiling(size uint64) *block {
	class, i := bin(size)
	if s.second[class]>>i&1 != 0 {
		if b := s.trees[class][i].ceiling(size); b != nil {
			return b
		}
	}
	if above := s.second[class] >> (i + 1) << (i + 1); above != 0 {
		return s.trees[class][bits.TrailingZeros8(above)].ceiling(0)
	}
	if above := s.first >> (class + 1) << (class + 1); above != 0 {
		class = bits.TrailingZeros64(above)
		return s.trees[class][bits.TrailingZeros8(s.second[class])].ceiling(0)
	}
	return nil
}

// last returns the largest block, nil when there is none.
func (s *bins) last() *block {
	if s.first == 0 {
		return nil
	}
	class := bits.Len64(s.first) - 1
	return s.trees[class][bits.Len8(s.second[class])-1].last()
}

// each visits the blocks in order.
func (s *bins) each(visit func(*block)) {
	for class := range s.trees {
		for i := range s.trees[class] {
			s.trees[class][i].each(visit)
		}
	}
}
