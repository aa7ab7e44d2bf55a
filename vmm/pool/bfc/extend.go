package bfc

import (
	"errors"
	"fmt"

	"tms/internal/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
)

// extend adds a region in which rounded bytes fit, and returns it as a free chunk. Regions double in
// size from one to the next; when the source has no room, it is asked for nine tenths, and again, down
// to what is needed. Two regions stay two though they may touch: the source takes back what it gave.
// Errors: pool.ErrOutOfMemory, or the source's.
func (p *Pool) extend(rounded uint64) (chunks.Handle, error) {
	available := (p.limit - p.table.Stats().Reserved) &^ (granularity - 1)
	if rounded > available {
		return chunks.None, fmt.Errorf("%w: the largest free chunk has %s and %s are left of the memory_limit of %s; free something or raise it",
			pool.ErrOutOfMemory, readable.Bytes(p.largestFree()), readable.Bytes(available), readable.Bytes(p.limit))
	}
	region := p.region
	for region < rounded {
		region *= 2
	}
	for size := min(region, available); ; size = less(size) {
		if size < rounded {
			return chunks.None, fmt.Errorf("%w: the largest free chunk has %s and the device has no room for a region; free something, or ask for less",
				pool.ErrOutOfMemory, readable.Bytes(p.largestFree()))
		}
		h, err := p.table.Grow(size)
		if errors.Is(err, pool.ErrOutOfMemory) {
			continue
		}
		if err != nil {
			return chunks.None, err
		}
		if region == p.region {
			region *= 2
		}
		p.region = min(region, p.limit)
		p.list(h)
		return h, nil
	}
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
	freed, _ := p.table.GiveBack(p.forget) // what the source refuses stays
	return freed > 0
}
