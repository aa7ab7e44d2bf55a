package bfc

import "tms/vmm/pool/internal/chunks"

// Timestamps let several streams share a pool. A counter grows with the work that is queued, and the
// safe frontier follows it as work is done. A chunk is stamped with the counter when it is freed; until
// the frontier has passed the stamp, work on other streams may still use it, and it is not joined with
// neighbours, because that would make them wait too.

// SetTimingCounter makes Free stamp chunks with what next returns; it must be more than 0, grow
// from call to call, or is taken to have grown by 1, and not call the pool; nil ends that.
// (BFCAllocator::SetTimingCounter)
func (p *Pool) SetTimingCounter(next func() uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counter = next
}

// SetSafeFrontier says that chunks stamped below count are safe for all. The frontier never goes back.
// (BFCAllocator::SetSafeFrontier, MergeTimestampedChunks)
func (p *Pool) SetSafeFrontier(count uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frontier = max(p.frontier, count)
	for {
		oldest, found := p.stamped.Ceiling(0)
		if !found || oldest.Key >= p.frontier {
			break
		}
		h := chunks.Handle(oldest.Value)
		p.forget(h)
		p.list(p.coalesce(h, false))
	}
	p.freed.Broadcast()
}

// mark stamps a chunk that is being freed.
func (p *Pool) mark(h chunks.Handle) {
	if p.counter == nil {
		return
	}
	p.latest = max(p.counter(), p.latest+1) // stamps differ, also those of a counter that does not grow
	if p.latest >= p.frontier {
		p.setStamp(h, p.latest)
	}
}

func (p *Pool) stamp(h chunks.Handle) uint64 {
	if int(h) >= len(p.stamps) {
		return 0
	}
	return p.stamps[h]
}

func (p *Pool) setStamp(h chunks.Handle, stamp uint64) {
	for int(h) >= len(p.stamps) {
		if stamp == 0 {
			return
		}
		p.stamps = append(p.stamps, 0)
	}
	p.stamps[h] = stamp
}

// joinUnsafe joins stamped chunks with their neighbours, the first freed first, until there is one of
// size bytes; whether there is. What is joined is as unsafe as the latest part of it.
func (p *Pool) joinUnsafe(size uint64) bool {
	var oldest []chunks.Handle
	for _, h := range p.stamped.From(0) {
		oldest = append(oldest, chunks.Handle(h))
	}
	for _, h := range oldest {
		if p.stamp(h) == 0 {
			continue // joined to one before
		}
		p.unlist(h)
		joined := p.coalesce(h, true)
		p.list(joined)
		if p.table.At(joined).Size >= size {
			return true
		}
	}
	return false
}
