package caching

// divisible reports whether what a block has beyond size is worth a block of its own.
func (p *Pool) divisible(b *block, size uint64) bool {
	rest := b.size - size
	if p.shelfOf(b).pool.small {
		return rest >= minBlock
	}
	return size < p.maxSplit && rest > smallSize
}

// carve makes a block that is about to be allocated as small as it may be.
func (p *Pool) carve(h handle, size uint64) {
	b := p.at(h)
	wasSplit := b.split()
	if !p.divisible(b, size) {
		if wasSplit {
			p.countSplit(b, -1, -int64(b.size))
		}
		return
	}
	rest := p.newBlock()
	b = p.at(h) // it may have moved
	r := p.at(rest)
	r.address, r.size, r.shelf = b.address+uintptr(size), b.size-size, b.shelf
	r.previous, r.next = h, b.next
	if b.next != none {
		p.at(b.next).previous = rest
	}
	b.size, b.next = size, rest
	p.put(rest, r)
	if wasSplit {
		p.countSplit(b, 0, -int64(size))
	} else {
		p.countSplit(b, 1, int64(r.size))
	}
}

// retire makes a block free that nothing uses any more, one with its free neighbours; it returns what
// became of it.
func (p *Pool) retire(h handle) handle {
	b := p.at(h)
	blocks, bytes := int64(0), int64(0)
	p.countInactive(b)
	p.disuse(b)
	b.requested = 0
	size := b.size
	next, previous := b.next, b.previous
	n, before := p.at(next), p.at(previous)
	// Both are read before either is acted on, so that the processor waits for them together.
	nextFree, previousFree := n.free, before.free
	if nextFree {
		blocks--
		bytes -= int64(n.size)
		p.take(n)
		p.join(h, b, next, n)
	}
	if previousFree {
		blocks--
		bytes -= int64(before.size)
		p.take(before)
		p.join(previous, before, h, b)
		h, b = previous, before
	}
	if b.split() {
		blocks++
		bytes = int64(size)
	}
	p.put(h, b)
	p.countSplit(b, blocks, bytes)
	return h
}

// join makes one block of b and its neighbour n behind it, neither of which is on the shelf.
func (p *Pool) join(h handle, b *block, next handle, n *block) {
	b.size += n.size
	b.next = n.next
	if b.next != none {
		p.at(b.next).previous = h
	}
	p.recycle(next, n)
}
