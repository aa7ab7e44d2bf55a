package caching

// divisible reports whether what a block has beyond size is worth a block of its own.
func (p *Pool) divisible(b *block, size uint64) bool {
	rest := b.size - size
	if b.bins.pool.small {
		return rest >= minBlock
	}
	return size < p.maxSplit && rest > smallSize
}

// carve makes a block that is about to be allocated as small as it may be.
func (p *Pool) carve(b *block, size uint64) {
	wasSplit := b.split()
	if !p.divisible(b, size) {
		if wasSplit {
			p.countSplit(b.bins.pool, -1, -int64(b.size))
		}
		return
	}
	rest := p.newBlock()
	rest.bins, rest.segment = b.bins, b.segment
	rest.size, rest.address = b.size-size, b.address+uintptr(size)
	rest.previous, rest.next = b, b.next
	if rest.next != nil {
		rest.next.previous = rest
	}
	b.size, b.next = size, rest
	rest.put()
	if wasSplit {
		p.countSplit(b.bins.pool, 0, -int64(size))
	} else {
		p.countSplit(b.bins.pool, 1, int64(rest.size))
	}
}

// retire makes a block free that nothing uses any more, one with its free neighbours; it returns what
// became of it.
func (p *Pool) retire(b *block) *block {
	blocks, bytes := int64(0), int64(0)
	p.countInactive(b)
	b.requested = 0
	size := b.size
	if next := b.next; next != nil && next.free {
		next.take()
		blocks--
		bytes -= int64(next.size)
		p.join(b, next)
	}
	if previous := b.previous; previous != nil && previous.free {
		previous.take()
		blocks--
		bytes -= int64(previous.size)
		p.join(previous, b)
		b = previous
	}
	if b.split() {
		blocks++
		bytes = int64(size)
	}
	b.put()
	p.countSplit(b.bins.pool, blocks, bytes)
	return b
}

// join makes one block of two neighbours, neither of which is in the tree.
func (p *Pool) join(b, next *block) {
	b.size += next.size
	b.next = next.next
	if b.next != nil {
		b.next.previous = b
	}
	p.recycle(next)
}
