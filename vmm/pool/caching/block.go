package caching

import "tms/vmm/pool"

// block is a part of a segment. Exactly one of these holds: it is allocated; it is free, in its bins;
// it was freed and waits for streams that used it.
type block struct {
	// What every call touches comes first, to lie in one cache line.
	size           uint64
	address        uintptr
	left, right    *block // in the tree
	priority       uint32
	free           bool
	allocated      bool
	previous, next *block // neighbours by address
	bins           *bins

	segment   *segment
	requested uint64
	born      uint64        // the pool's clock when it became free
	uses      []pool.Stream // others than its own
	pending   int           // events not yet done
}

// split reports whether the block is less than its segment.
func (b *block) split() bool { return b.previous != nil || b.next != nil }

func (b *block) put() {
	b.free = true
	b.born = b.bins.pool.clock
	b.bins.insert(b)
}

func (b *block) take() {
	b.free = false
	b.bins.remove(b)
}

// segment is what one call to the source gave.
type segment struct {
	head  *block
	index int // in Pool.segments
}

// metadata is made in groups that fill a page.
const metadataGroup = 64

func (p *Pool) newBlock() *block {
	if p.spare == nil {
		group := make([]block, metadataGroup)
		for i := range group {
			p.random = p.random*6364136223846793005 + 1442695040888963407
			group[i].priority = uint32(p.random >> 32)
			group[i].next = p.spare
			p.spare = &group[i]
		}
	}
	b := p.spare
	p.spare = b.next
	b.next = nil
	return b
}

func (p *Pool) recycle(b *block) {
	*b = block{priority: b.priority, uses: b.uses[:0], next: p.spare}
	p.spare = b
}
