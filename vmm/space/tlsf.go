package space

import (
	"fmt"
	"math/bits"
)

// tlsf hands out blocks of granules and merges those that are given back: two-level segregated fit (Masmano et al.,
// "TLSF", 2004), so both are O(1) however many blocks there are.
type tlsf struct {
	head   *block             // the first by address
	first  uint32             // bit f: second[f] is not 0
	second [classes]uint8     // bit s: bins[f][s] is not empty
	bins   [][binsEach]*block // free blocks by size class, up to that of the whole
}

const (
	classes  = 30 // powers of two, the small sizes together in class 0
	binsEach = 8  // bins in each
)

// block is a range of granules, in use or free.
type block struct {
	start, count       uint32
	free               bool
	previous, next     *block // neighbours by address
	binBefore, binNext *block // other free blocks of the bin
}

func newTLSF(granules uint32) *tlsf {
	largest, _ := bin(granules)
	t := &tlsf{head: &block{count: granules}, bins: make([][binsEach]*block, largest+1)}
	t.insert(t.head)
	return t
}

// bin is where a free block of count granules is kept.
func bin(count uint32) (class, index int) {
	if count < binsEach {
		return 0, int(count)
	}
	log := bits.Len32(count) - 1
	return log - 2, int(count>>(log-3)) & (binsEach - 1)
}

func (t *tlsf) insert(b *block) {
	f, i := bin(b.count)
	b.free = true
	b.binBefore, b.binNext = nil, t.bins[f][i]
	if b.binNext != nil {
		b.binNext.binBefore = b
	}
	t.bins[f][i] = b
	t.second[f] |= 1 << i
	t.first |= 1 << f
}

func (t *tlsf) remove(b *block) {
	f, i := bin(b.count)
	b.free = false
	if b.binNext != nil {
		b.binNext.binBefore = b.binBefore
	}
	if b.binBefore != nil {
		b.binBefore.binNext = b.binNext
		return
	}
	t.bins[f][i] = b.binNext
	if b.binNext == nil {
		if t.second[f] &^= 1 << i; t.second[f] == 0 {
			t.first &^= 1 << f
		}
	}
}

// search returns a free block of at least count granules, nil if there is none.
func (t *tlsf) search(count uint32) *block {
	rounded := count
	if count >= binsEach {
		// Every block of the next bin up is large enough; those of the count's own bin may not be.
		rounded += 1<<(bits.Len32(count)-4) - 1
	}
	f, i := bin(rounded)
	if inClass := t.second[f] >> i << i; inClass != 0 {
		return t.bins[f][bits.TrailingZeros8(inClass)]
	}
	if above := t.first >> (f + 1) << (f + 1); above != 0 {
		f = bits.TrailingZeros32(above)
		return t.bins[f][bits.TrailingZeros8(t.second[f])]
	}
	// It is nearly full: only a block of the count's own bin can still fit.
	if f, i = bin(count); f >= len(t.bins) {
		return nil
	}
	b := t.bins[f][i]
	for b != nil && b.count < count {
		b = b.binNext
	}
	return b
}

// allocate takes count granules, 0 < count < 2^31; nil when no block is large enough.
func (t *tlsf) allocate(count uint32) *block {
	b := t.search(count)
	if b == nil {
		return nil
	}
	t.remove(b)
	if b.count > count {
		t.insert(t.split(b, count))
	}
	return b
}

// split shortens a block that is in no bin to count granules and returns the rest.
func (t *tlsf) split(b *block, count uint32) *block {
	rest := &block{start: b.start + count, count: b.count - count, previous: b, next: b.next}
	if rest.next != nil {
		rest.next.previous = rest
	}
	b.count, b.next = count, rest
	return rest
}

// release gives a block back.
func (t *tlsf) release(b *block) {
	if n := b.next; n != nil && n.free {
		t.remove(n)
		t.join(b, n)
	}
	if l := b.previous; l != nil && l.free {
		t.remove(l)
		t.join(l, b)
		b = l
	}
	t.insert(b)
}

// join makes one block of two neighbours, neither of which is in a bin.
func (t *tlsf) join(b, next *block) {
	b.count += next.count
	b.next = next.next
	if b.next != nil {
		b.next.previous = b
	}
}

// check walks the blocks of so many granules, of which so many are in use.
func (t *tlsf) check(granules, used uint32, owned func(*block) bool) error {
	at, count := uint32(0), uint32(0)
	for b := t.head; b != nil; b = b.next {
		switch {
		case b.start != at:
			return fmt.Errorf("a block at granule %d, expected at %d", b.start, at)
		case b.next != nil && b.next.previous != b:
			return fmt.Errorf("the neighbour of the block at %d does not know it", at)
		case b.free && b.next != nil && b.next.free:
			return fmt.Errorf("two free blocks side by side at %d", at)
		case b.free && owned(b):
			return fmt.Errorf("a free block in use at %d", at)
		}
		if !b.free {
			count += b.count
		}
		at += b.count
	}
	if at != granules || count != used {
		return fmt.Errorf("blocks of %d granules in %d, %d in use, noted are %d", at, granules, count, used)
	}
	return nil
}
