package caching

import (
	"errors"
	"fmt"
	"math"

	"tms/vmm/pool"
)

// release gives a free block that is an entire segment back to the source. After an error it is as it
// was.
func (p *Pool) release(b *block) error {
	if err := p.source.Free(b.address, b.size); err != nil {
		p.sourceFailures++
		return fmt.Errorf("giving back the segment at %#x: %w", b.address, err)
	}
	p.sourceFrees++
	b.take()
	last := p.segments[len(p.segments)-1]
	last.index = b.segment.index
	p.segments[last.index] = last
	p.segments[len(p.segments)-1] = nil
	p.segments = p.segments[:len(p.segments)-1]
	from := b.bins.pool
	if from.graph != nil {
		from.graph.segments--
	}
	if b.bins.segments--; b.bins.segments == 0 {
		from.close(b.bins)
	}
	p.countSegment(b, -1)
	p.recycle(b)
	return nil
}

// releaseAvailable gives back blocks of at least max_split_size, which are never split: the first that
// is large enough for size, else from the largest down until together they are. It reports whether
// that much was given back.
func (p *Pool) releaseAvailable(from *blockPool, size uint64, stream pool.Stream) (bool, error) {
	s := from.of(stream)
	if s == nil || p.maxSplit == math.MaxUint64 {
		return false, nil
	}
	size = max(size, p.maxSplit)
	if b := s.ceiling(size); b != nil {
		err := p.release(b)
		return err == nil, err
	}
	for released := uint64(0); released < size; {
		b := s.last()
		if b == nil || b.size < p.maxSplit {
			return false, nil
		}
		released += b.size
		if err := p.release(b); err != nil {
			return false, err
		}
	}
	return true, nil
}

// releaseCached waits for the events of freed blocks and gives back every segment that is free.
func (p *Pool) releaseCached() (uint64, error) {
	err := p.synchronizeEvents()
	p.unpark()
	released, refused := p.releaseEmpty()
	return released, errors.Join(err, refused)
}

// releaseEmpty gives back every segment that is free, but for those of graphs that still exist.
func (p *Pool) releaseEmpty() (uint64, error) {
	released, err := p.releaseWhole(&p.large)
	n, failed := p.releaseWhole(&p.small)
	released, err = released+n, errors.Join(err, failed)
	kept := p.graphs[:0]
	for _, g := range p.graphs {
		if g.graphs == 0 {
			for _, from := range []*blockPool{&g.small, &g.large} {
				n, failed := p.releaseWhole(from)
				released, err = released+n, errors.Join(err, failed)
			}
		}
		if g.graphs > 0 || g.segments > 0 {
			kept = append(kept, g)
		}
	}
	clear(p.graphs[len(kept):])
	p.graphs = kept
	return released, err
}

func (p *Pool) releaseWhole(from *blockPool) (released uint64, err error) {
	for _, b := range from.whole() {
		size := b.size
		if failed := p.release(b); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		released += size
	}
	return released, err
}
