package space

import (
	"fmt"
	"math/bits"
)

// fit hands out blocks of granules and merges blocks that are given back. Free blocks are in lists by size (segregated
// fit: Knuth, "The Art of Computer Programming" 2.5, and Wilson and others, "Dynamic Storage Allocation", 1995).
type fit struct {
	head *block   // the first by address
	full []uint64 // bit c%64 of word c/64: bins[c] has a block
	bins []*block // free blocks; see bin
}

// block is a range of granules, in use or free.
type block struct {
	start, count       uint32
	free               bool
	previous, next     *block // neighbours by address
	binBefore, binNext *block // other free blocks of the bin
}

func newFit(granules uint32) *fit {
	bins := bin(granules) + 1
	t := &fit{head: &block{count: granules}, full: make([]uint64, (bins+63)/64), bins: make([]*block, bins)}
	t.insert(t.head)
	return t
}

// Counts up to exact have a bin each, so that no block that is too small is looked at. Larger counts
// are few; they have perOctave bins from each power of two to the next.
const (
	exact     = 64
	perOctave = 16
)

func bin(count uint32) int {
	if count <= exact {
		return int(count)
	}
	octave := bits.Len32(count) - 1
	part := count>>(octave-4) - perOctave // the next four bits
	return exact + 1 + (octave-6)*perOctave + int(part)
}

func (t *fit) insert(b *block) {
	c := bin(b.count)
	b.free, b.binBefore, b.binNext = true, nil, t.bins[c]
	if b.binNext != nil {
		b.binNext.binBefore = b
	}
	t.bins[c] = b
	t.full[c/64] |= 1 << (c % 64)
}

func (t *fit) remove(b *block) {
	b.free = false
	if b.binNext != nil {
		b.binNext.binBefore = b.binBefore
	}
	if b.binBefore != nil {
		b.binBefore.binNext = b.binNext
		return
	}
	c := bin(b.count)
	if t.bins[c] = b.binNext; b.binNext == nil {
		t.full[c/64] &^= 1 << (c % 64)
	}
}

// from returns the first block of the first bin with any, from bin c on.
func (t *fit) from(c int) *block {
	for word := c / 64; word < len(t.full); word++ {
		full := t.full[word]
		if word == c/64 {
			full = full >> (c % 64) << (c % 64)
		}
		if full != 0 {
			return t.bins[word*64+bits.TrailingZeros64(full)]
		}
	}
	return nil
}

const looks = 64 // at blocks of a count's own bin, before a larger one is split

// search returns a free block of at least count granules, nil if there is none.
func (t *fit) search(count uint32) *block {
	c := bin(count)
	if c >= len(t.bins) {
		return nil
	}
	larger := t.from(c + 1) // of these each is large enough
	b := t.bins[c]
	for n := 0; b != nil && b.count < count && (n < looks || larger == nil); n++ {
		b = b.binNext
	}
	if b == nil || b.count < count {
		return larger
	}
	return b
}

// allocate takes count granules, 0 < count < 2^31; nil when no block is large enough.
func (t *fit) allocate(count uint32) *block {
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
func (t *fit) split(b *block, count uint32) *block {
	rest := &block{start: b.start + count, count: b.count - count, previous: b, next: b.next}
	if rest.next != nil {
		rest.next.previous = rest
	}
	b.count, b.next = count, rest
	return rest
}

// release gives a block back.
func (t *fit) release(b *block) {
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
func (t *fit) join(b, next *block) {
	b.count += next.count
	b.next = next.next
	if b.next != nil {
		b.next.previous = b
	}
}

// check walks the blocks. Together they must have the granules, of which used are in use.
func (t *fit) check(granules, used uint32, owned func(*block) bool) error {
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
