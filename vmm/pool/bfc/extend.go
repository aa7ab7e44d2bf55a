package bfc

import (
	"errors"
	"fmt"

	"tms/internal/aid/readable"
	"tms/vmm/pool"
)

// extend adds a free region with room for rounded bytes. Each region is twice the size of the one before. If the source
// has no room, extend asks for nine tenths of that, again and again, and finally for what it needs. A region that
// touches others is joined to them if the source allows it. Errors: pool.ErrOutOfMemory, or the source's.
func (p *Pool) extend(rounded uint64) error {
	available := (p.limit - min(p.limit, p.table.Stats().Reserved)) &^ (granularity - 1)
	if rounded > available && p.given {
		return fmt.Errorf("%w: the largest free chunk has %s and %s are left of the memory_limit of %s; "+
			"free something or raise it",
			pool.ErrOutOfMemory, readable.Bytes(p.table.Largest()), readable.Bytes(available), readable.Bytes(p.limit))
	}
	region := p.region
	for region < rounded {
		region *= 2
	}
	size := max(min(region, available), rounded)
	h, err := p.table.Grow(size)
	for errors.Is(err, pool.ErrOutOfMemory) && size > rounded {
		size = max(p.less(size), rounded)
		h, err = p.table.Grow(size)
	}
	switch {
	case errors.Is(err, pool.ErrOutOfMemory):
		return fmt.Errorf("%w: the largest free chunk has %s and the device has no room for a region; "+
			"free something, or ask for less", pool.ErrOutOfMemory, readable.Bytes(p.table.Largest()))
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

// less returns nine tenths of a region's size, rounded up but never the same. A region that ended within a granule of
// the device's memory would touch no other.
func (p *Pool) less(size uint64) uint64 {
	unit := uint64(granularity)
	if p.joined != nil && size > deviceGranule {
		unit = deviceGranule
	}
	return min((size-size/10+unit-1)&^(unit-1), (size-1)&^(unit-1))
}

// giveBackIdle gives idle regions back if that can make room for rounded bytes within the limit and on the device.
func (p *Pool) giveBackIdle(rounded uint64) bool {
	if !p.collect {
		return false
	}
	idle := p.table.Idle()
	if idle == 0 || rounded > p.limit-p.table.Stats().Reserved+idle {
		return false
	}
	if p.memory != nil {
		free, total, err := p.memory.Memory()
		if err == nil && total > 0 && rounded > free+idle {
			return false
		}
	}
	freed, _ := p.GiveBack() // a region that the source refuses stays
	return freed > 0
}
