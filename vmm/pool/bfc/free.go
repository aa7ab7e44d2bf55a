package bfc

import (
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
)

// key is where a free chunk stands in the order of the best fit.
func (p *Pool) key(h chunks.Handle) uint64 {
	c := p.table.At(h)
	return ordered.Fit(c.Size, c.Address)
}

// list makes a free chunk one that can be found.
func (p *Pool) list(h chunks.Handle) {
	p.free.Insert(p.key(h), uint32(h))
	if stamp := p.stamp(h); stamp != 0 {
		p.stamped.Insert(stamp, uint32(h))
	}
}

func (p *Pool) unlist(h chunks.Handle) {
	p.free.Remove(p.key(h))
	if stamp := p.stamp(h); stamp != 0 {
		p.stamped.Remove(stamp)
	}
}

// fit returns the smallest free chunk of at least size bytes, the lowest of several; with before, only
// of those that were freed by then. None if there is none.
func (p *Pool) fit(size, before uint64) chunks.Handle {
	least := ordered.Fit(size, 0)
	if before == 0 {
		e, _ := p.free.Ceiling(least)
		return chunks.Handle(e.Value)
	}
	for _, h := range p.free.From(least) {
		if p.stamp(chunks.Handle(h)) <= before {
			return chunks.Handle(h)
		}
	}
	return chunks.None
}

// largestFree returns the size of the largest free chunk.
func (p *Pool) largestFree() uint64 {
	_, h, _ := p.free.Last()
	return p.table.At(chunks.Handle(h)).Size
}
