package caching

// divisible reports whether the rest of a block beyond size is worth a block of its own.
func (p *Pool) divisible(b *block, size uint64) bool {
	rest := b.Size - size
	if p.listOf(b).pool.small {
		return rest >= minBlock
	}
	return size < p.maxSplit && rest > smallSize
}

// split makes a block that is about to be allocated as small as it may be.
func (p *Pool) split(h handle, size uint64) {
	b := p.at(h)
	whole := b.Whole()
	if !p.divisible(b, size) {
		if !whole {
			p.countSplit(b, -1, -int64(b.Size))
		}
		return
	}
	rest := p.table.Split(h, size)
	r := p.at(rest)
	p.put(rest, r)
	if whole {
		p.countSplit(r, 1, int64(r.Size))
	} else {
		p.countSplit(r, 0, -int64(size))
	}
}

// retire makes a block free that nothing uses any longer, and joins it with its free neighbours.
func (p *Pool) retire(h handle) {
	b := p.at(h)
	blocks, bytes := int64(0), int64(0)
	if !b.Own.pending {
		p.countFree(b)
	}
	p.countInactive(b)
	b.Own.pending = false
	b.Requested = 0
	size := b.Size
	next, previous := b.Next, b.Previous
	n, before := p.at(next), p.at(previous)
	// Both are read before either is used, so that the processor waits for them together.
	nextTaken, previousTaken := n.Taken(), before.Taken()
	if !nextTaken {
		blocks--
		bytes -= int64(n.Size)
		p.take(n)
		p.table.Join(h)
	}
	if !previousTaken {
		blocks--
		bytes -= int64(before.Size)
		p.take(before)
		p.table.Join(previous)
		h, b = previous, before
	}
	if !b.Whole() {
		blocks++
		bytes = int64(size)
	}
	p.put(h, b)
	p.countSplit(b, blocks, bytes)
}
