package bfc

import (
	"math/bits"

	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
)

// binCount bins: bin b has the free chunks from 256 << b bytes to twice that, the last all above.
const binCount = 21

func binFor(size uint64) int {
	return min(bits.Len64(size/granularity)-1, binCount-1)
}

func binSize(bin int) uint64 { return granularity << bin }

// list makes a free chunk one that can be found.
func (p *Pool) list(h chunks.Handle) {
	c := p.table.At(h)
	b := binFor(c.Size)
	p.bins[b].Insert(ordered.Key{Major: c.Size, Minor: uint64(c.Address)}, uint32(h))
	p.occupied |= 1 << b
	if stamp := p.stamp(h); stamp != 0 {
		p.stamped.Insert(ordered.Key{Major: stamp, Minor: uint64(c.Address)}, uint32(h))
	}
}

func (p *Pool) unlist(h chunks.Handle) {
	c := p.table.At(h)
	b := binFor(c.Size)
	p.bins[b].Remove(ordered.Key{Major: c.Size, Minor: uint64(c.Address)})
	if p.bins[b].Len() == 0 {
		p.occupied &^= 1 << b
	}
	if stamp := p.stamp(h); stamp != 0 {
		p.stamped.Remove(ordered.Key{Major: stamp, Minor: uint64(c.Address)})
	}
}

// fit returns the smallest free chunk of at least size bytes, the lowest of several, from the first
// bin that has one; with before, only of those that were freed by then. None if there is none.
func (p *Pool) fit(size, before uint64) chunks.Handle {
	least := ordered.Key{Major: size}
	first := binFor(size)
	for left := p.occupied >> first << first; left != 0; left &= left - 1 {
		bin := &p.bins[bits.TrailingZeros32(left)]
		if before == 0 {
			if _, h, found := bin.Ceiling(least); found {
				return chunks.Handle(h)
			}
			continue
		}
		for _, h := range bin.From(least) {
			if p.stamp(chunks.Handle(h)) <= before {
				return chunks.Handle(h)
			}
		}
	}
	return chunks.None
}

// largestFree returns the size of the largest free chunk.
func (p *Pool) largestFree() uint64 {
	if p.occupied == 0 {
		return 0
	}
	largest, _, _ := p.bins[bits.Len32(p.occupied)-1].Last()
	return largest.Major
}
