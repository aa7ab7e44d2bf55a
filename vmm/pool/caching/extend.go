package caching

import (
	"errors"
	"fmt"

	"tms/internal/readable"
	"tms/vmm/pool"
)

// extend gets a new segment for a block of size. When memory is short it gives cached segments back in steps and tries
// again, except during a capture, when the source must not free.
func (p *Pool) extend(into *blockPool, size uint64, stream pool.Stream) (handle, error) {
	wanted := segmentSize(size)
	mayRelease := !p.Capturing()
	var refused error
	if mayRelease {
		refused = p.collect()
	}
	h, err := p.grow(into, wanted, stream)
	if mayRelease && errors.Is(err, pool.ErrOutOfMemory) {
		enough, failed := p.releaseAvailable(into, size, stream)
		refused = errors.Join(refused, failed)
		if enough {
			h, err = p.grow(into, wanted, stream)
		}
	}
	if mayRelease && errors.Is(err, pool.ErrOutOfMemory) {
		_, failed := p.releaseCached()
		refused = errors.Join(refused, failed)
		p.retries++
		h, err = p.grow(into, wanted, stream)
	}
	if errors.Is(err, pool.ErrOutOfMemory) {
		p.ooms++
		return none, p.outOfMemory(wanted, errors.Join(err, refused))
	}
	return h, err
}

// grow makes a segment: one block, not yet free.
func (p *Pool) grow(into *blockPool, size uint64, stream pool.Stream) (handle, error) {
	if p.limited && p.reserved()+size > p.allowed {
		return none, fmt.Errorf("%w: the memory fraction allows %s", pool.ErrOutOfMemory, readable.Bytes(p.allowed))
	}
	h, err := p.table.Grow(size)
	if err != nil {
		return none, fmt.Errorf("a segment of %s: %w", readable.Bytes(size), err)
	}
	l := p.open(into, stream)
	l.segments++
	b := p.at(h)
	b.Own.list = l.number
	p.countSegment(b, 1)
	return h, nil
}
