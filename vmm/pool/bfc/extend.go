package bfc

import (
	"errors"
	"fmt"

	"tms/internal/readable"
	"tms/vmm/pool"
)

// extend adds a region in which rounded bytes fit, which is free. Regions double in
// size from one to the next; when the source has no room, it is asked for nine tenths, and again, and at
// last for what is needed. A region that touches others is joined to them where the source allows it.
// Errors: pool.ErrOutOfMemory, or the source's.
func (p *Pool) extend(rounded uint64) error {
	available := (p.limit - p.table.Stats().Reserved) &^ (granularity - 1)
	if rounded > available {
		return fmt.Errorf("%w: the largest free chunk has %s and %s are left of the memory_limit of %s; free something or raise it",
			pool.ErrOutOfMemory, readable.Bytes(p.table.Largest()), readable.Bytes(available), readable.Bytes(p.limit))
	}
	region := p.region
	for region < rounded {
		region *= 2
	}
	size := min(region, available)
	h, err := p.table.Grow(size)
	for errors.Is(err, pool.ErrOutOfMemory) && size > rounded {
		size = max(less(size), rounded)
		h, err = p.table.Grow(size)
	}
	switch {
	case errors.Is(err, pool.ErrOutOfMemory):
		return fmt.Errorf("%w: the largest free chunk has %s and the device has no room for a region; free something, or ask for less",
			pool.ErrOutOfMemory, readable.Bytes(p.table.Largest()))
	case err != nil:
		return err
	}
	if region == p.region {
		region *= 2
	}
	p.region = min(region, p.limit)
	if p.joined != nil {
		p.table.Connect(h, p.joined)
	}
	p.table.Add(h)
	return nil
}

// less is nine tenths of a region's size, rounded up but never the same.
func less(size uint64) uint64 {
	return min((size-size/10+granularity-1)&^(granularity-1), size-granularity)
}

// giveBackIdle gives idle regions back to the source if that can make room for rounded bytes.
func (p *Pool) giveBackIdle(rounded uint64) bool {
	if !p.collect {
		return false
	}
	idle := p.table.Idle()
	if idle == 0 || rounded > p.limit-p.table.Stats().Reserved+idle {
		return false
	}
	freed, _ := p.table.Trim() // what the source refuses stays
	return freed > 0
}
