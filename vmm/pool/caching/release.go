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
	if l.pool.graph != nil {
		l.pool.graph.segments--
	}
	if l.segments--; l.segments == 0 {
		p.close(l)
	}
	return nil
}

// releaseAvailable gives back blocks of at least max_split_size, which are never split: the first that is large enough
// for size, else from the largest down, until together they are large enough. It reports whether they were.
func (p *Pool) releaseAvailable(from *blockPool, size uint64, stream pool.Stream) (bool, error) {
	s := from.of(stream)
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

// releaseCached waits for the events of freed blocks and gives back every segment that is free.
func (p *Pool) releaseCached() (uint64, error) {
	err := p.uses.Settle(true, p.back)
	released, refused := p.releaseEmpty()
	return released, errors.Join(err, refused)
}

// releaseEmpty gives back every segment that is free, except those of graphs that still exist.
func (p *Pool) releaseEmpty() (uint64, error) {
	released, err := p.releaseWhole(&p.largePool)
	n, failed := p.releaseWhole(&p.smallPool)
	released, err = released+n, errors.Join(err, failed)
	p.Dissolve(func(g *graphPool) {
		for _, from := range []*blockPool{&g.small, &g.large} {
			n, failed := p.releaseWhole(from)
			released, err = released+n, errors.Join(err, failed)
		}
	})
	return released, err
}

func (p *Pool) releaseWhole(from *blockPool) (released uint64, err error) {
	for _, h := range p.whole(from) {
		size := p.at(h).Size
		if failed := p.release(h); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		released += size
	}
	return released, err
}
