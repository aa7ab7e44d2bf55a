package caching

import (
	"errors"
	"math"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/ordered"
)

// release gives a free block that is an entire segment back to the source. An error changes nothing.
func (p *Pool) release(h handle) error {
	b := *p.at(h)
	if err := p.table.ReturnWhole(h); err != nil {
		return err
	}
	p.take(&b)
	p.countSegment(&b, -1)
	l := p.listOf(&b)
	if l.segments--; l.segments == 0 {
		p.close(l)
	}
	return nil
}

// releaseAvailable gives back blocks of at least max_split_size, which are never split: the first that is large enough
// for size, else from the largest down, until together they are large enough. It reports whether they were.
func (p *Pool) releaseAvailable(from *blockPool, size uint64, stream pool.Stream) (bool, error) {
	s := from.freeListOf(stream)
	if s == nil || p.maxSplit == math.MaxUint64 {
		return false, nil
	}
	size = max(size, p.maxSplit)
	if e, found := s.free.Ceiling(ordered.Fit(size, 0)); found {
		err := p.release(handle(e.Value))
		return err == nil, err
	}
	for released := uint64(0); released < size; {
		_, last, _ := s.free.Last()
		h := handle(last)
		if h == none || p.at(h).Size < p.maxSplit {
			return false, nil
		}
		released += p.at(h).Size
		if err := p.release(h); err != nil {
			return false, err
		}
	}
	return true, nil
}

// releaseCached waits for freed blocks' events and gives back all free segments, but for those of graphs that exist.
func (p *Pool) releaseCached() (err error) {
	err = p.uses.Settle(true, p.back)
	give := func(from *blockPool) {
		for _, h := range p.whole(from) {
			err = errors.Join(err, p.release(h))
		}
	}
	give(&p.largePool)
	give(&p.smallPool)
	p.Dissolve(func(g *graphPool) {
		give(&g.small)
		give(&g.large)
	})
	return err
}

// collecting reports whether there is garbage collection. Then a pool's clock counts searches, and so its blocks' age.
func (p *Pool) collecting() bool { return p.limited && p.threshold > 0 }

// collect gives old large segments back, without waiting, if the pool holds more than the threshold allows. It takes
// those of at least the average age, then again with the average of the rest, until the excess is gone.
func (p *Pool) collect() (err error) {
	if !p.collecting() {
		return nil
	}
	target := int64(p.threshold * float64(p.allowed))
	if p.all(reservedBytes).Current <= target {
		return nil
	}
	blocks := p.whole(&p.largePool)
	age := uint64(0)
	for _, h := range blocks {
		age += p.largePool.clock - p.at(h).Own.born
	}
	for len(blocks) > 0 && p.all(reservedBytes).Current > target {
		count, sum := uint64(len(blocks)), age
		younger := blocks[:0]
		for _, h := range blocks {
			own := p.largePool.clock - p.at(h).Own.born
			if own*count < sum {
				younger = append(younger, h)
				continue
			}
			age -= own
			err = errors.Join(err, p.release(h))
		}
		blocks = younger
	}
	return err
}
