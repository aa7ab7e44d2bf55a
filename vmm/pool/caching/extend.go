package caching

import (
	"errors"
	"fmt"

	"tms/internal/aid/readable"
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
		refused = errors.Join(refused, p.releaseCached())
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

// SetMemoryFraction limits the pool to a part, from 0 to 1, of the device's memory. (set_per_process_memory_fraction)
// Errors: pool.ErrOption for other numbers or if the device's memory is unknown, or the source's.
func (p *Pool) SetMemoryFraction(fraction float64) error {
	if !(fraction >= 0 && fraction <= 1) {
		return fmt.Errorf("%w: a memory fraction of %v: give 0 to 1", pool.ErrOption, fraction)
	}
	p.Lock()
	defer p.Unlock()
	_, total, err := p.memory()
	if err != nil {
		return fmt.Errorf("reading the device's memory: %w", err)
	}
	if total == 0 {
		return fmt.Errorf("%w: a memory fraction needs total=, since the source does not know it", pool.ErrOption)
	}
	p.allowed = uint64(fraction * float64(total))
	p.limited = true
	return nil
}

// memory returns the device's free and total memory, or 0 if they are unknown. Under total=, what the pool does not
// hold is free.
func (p *Pool) memory() (free, total uint64, err error) {
	if m, ok := p.source.(pool.Memory); ok {
		return m.Memory()
	}
	return p.total - min(p.total, p.reserved()), p.total, nil
}

// outOfMemory describes the state after the pool gave back all that it could, in PyTorch's words and order, and what
// the caller can do about it. tried is the size of the segment that found no room. The error wraps pool.ErrOutOfMemory
// and the cause.
func (p *Pool) outOfMemory(tried uint64, cause error) error {
	known, unused, fraction := "unknown", "unknown", ""
	free, total, err := p.memory()
	if err != nil {
		total = 0 // the lack of memory matters more than this error
	}
	if total > 0 {
		known, unused = readable.Bytes(total), readable.Bytes(free)
	}
	if p.limited {
		fraction = readable.Bytes(p.allowed) + " allowed; "
	}
	allocated, reserved := uint64(p.all(allocatedBytes).Current), p.reserved()
	advice := "Free something"
	switch {
	case total > 0 && tried > total:
		advice = "Ask for less"
	case p.limited && reserved+tried > p.allowed:
		advice = "Free something, or raise the memory fraction"
	case reserved-allocated >= tried:
		advice = "More is reserved than allocated: max_split_size= may avoid fragmentation"
	}
	return fmt.Errorf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; "+
		"%s already allocated; %s free; %s%s reserved in total by the pool). %s%.0w%.0w",
		readable.Bytes(tried), p.device, known, readable.Bytes(allocated), unused, fraction,
		readable.Bytes(reserved), advice, pool.ErrOutOfMemory, cause)
}
