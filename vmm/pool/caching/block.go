package caching

import "tms/vmm/pool/internal/ordered"

// handle names a block by its place in Pool.blocks. Handles are used again, so that no call makes
// garbage, and hold no pointers for the collector to follow.
type handle uint32

// none is no block; its metadata are of no size, and not free.
const none handle = 0

// block is a part of a segment. Exactly one of these holds: it is allocated; it is free, on its shelf;
// it was freed and waits for streams that used it. It fills a cache line.
type block struct {
	address        uintptr
	size           uint64 // 0: the handle is not in use
	requested      uint64
	born           uint64 // the pool's clock when it became free
	previous, next handle // neighbours by address; of an unused handle, the next unused one
	shelf          uint32 // in Pool.shelves
	usage          uint32 // in Pool.usages; 0: other streams have not used it
	free           bool
	allocated      bool
	_              [8]byte // to 64
}

// split reports whether the block is less than its segment.
func (b *block) split() bool { return b.previous != none || b.next != none }

// key is where a free block stands on its shelf.
func (b *block) key() uint64 { return ordered.Fit(b.size, b.address) }

// at returns a block; the pointer is good until the next newBlock.
func (p *Pool) at(h handle) *block { return &p.blocks[h] }

func (p *Pool) shelfOf(b *block) *shelf { return p.shelves[b.shelf] }

// put makes a block free.
func (p *Pool) put(h handle, b *block) {
	s := p.shelfOf(b)
	b.free = true
	b.born = s.pool.clock
	s.free.Insert(b.key(), uint32(h))
}

// take makes a block that is free no longer so.
func (p *Pool) take(b *block) {
	b.free = false
	p.shelfOf(b).free.Remove(b.key())
}

func (p *Pool) newBlock() handle {
	h := p.spare
	if h == none {
		p.blocks = append(p.blocks, block{})
		return handle(len(p.blocks) - 1)
	}
	b := p.at(h)
	p.spare, b.next = b.next, none
	return h
}

func (p *Pool) recycle(h handle, b *block) {
	*b = block{next: p.spare}
	p.spare = h
}

// head returns the first block of the segment that a block is in.
func (p *Pool) head(h handle) handle {
	for p.at(h).previous != none {
		h = p.at(h).previous
	}
	return h
}

// heads yields the first block of each segment.
func (p *Pool) heads(yield func(handle) bool) {
	for h := range p.blocks {
		if b := &p.blocks[h]; b.size > 0 && b.previous == none && !yield(handle(h)) {
			return
		}
	}
}
