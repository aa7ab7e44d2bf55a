// Package paddle is PaddlePaddle's BuddyAllocator (paddle/fluid/memory/detail/buddy_allocator.cc), which despite its
// name is best fit with coalescing. Free chunks are split to the exact size and joined with both neighbours. Blocks
// above a limit come straight from the system allocator, here the source.
package paddle

import (
	"cmp"
	"fmt"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ledger"
)

const granularity = 256 // chunk sizes are multiples of it

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	ledger.Base[chunks.Handle]
	table chunks.BestFit

	huge, hugeBytes uint64 // live blocks above maximum, segments of their own

	minimum, maximum uint64 // bytes of a chunk cut from a refill
	first, again     uint64 // bytes of an empty pool's refill, and of later ones
	descriptor       uint64
}

// New makes an empty pool. It ignores streams: in Paddle one stream computes per device.
//
//	min_chunk   bytes: sizes are rounded up to a multiple of this, itself a multiple of 256 (256)
//	max_chunk   bytes of the largest chunk; a larger block gets its own segment (the larger of the next two)
//	initial     bytes of the first refill (max_chunk, or 1 GiB; Paddle takes 92 % of the device)
//	reallocate  bytes of later refills (the same)
//	descriptor  bytes added to each request, so that sizes are Paddle's; nothing is written there (64, as in 2020)
//
// Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (pool.Pool, error) {
	p := &Pool{
		minimum:    options.Bytes("min_chunk", granularity),
		maximum:    options.Bytes("max_chunk", 0),
		descriptor: options.Bytes("descriptor", 64),
	}
	refill := cmp.Or(p.maximum, 1<<30)
	p.first, p.again = options.Bytes("initial", refill), options.Bytes("reallocate", refill)
	p.maximum = cmp.Or(p.maximum, max(p.first, p.again))
	if err := options.Err(); err != nil {
		return nil, err
	}
	if p.minimum == 0 || p.minimum%granularity != 0 {
		return nil, fmt.Errorf("%w: min_chunk=%d: give a multiple of %d", pool.ErrOption, p.minimum, granularity)
	}
	if p.maximum < p.minimum {
		return nil, fmt.Errorf("%w: max_chunk=%d is less than min_chunk=%d", pool.ErrOption, p.maximum, p.minimum)
	}
	p.first, p.again = p.align(p.first), p.align(p.again)
	p.table.Open("paddle", source)
	p.Open(&p.table.Ledger, ledger.Placement[chunks.Handle]{Place: p.place, Advice: p.advice, Reuse: p.reuse,
		Trim: p.table.Trim, End: p.end, Detail: p.detail})
	return p, nil
}

func (p *Pool) align(size uint64) uint64 {
	return (size + p.minimum - 1) / p.minimum * p.minimum
}

// advice names the option that decides how much a block takes from the source.
func (p *Pool) advice(requested uint64) string {
	switch {
	case requested > p.maximum:
		return "free something, or ask for less"
	case p.refills() == 0:
		return "free something, ask for less, or give a smaller initial="
	}
	return "free something, ask for less, or give a smaller reallocate="
}

func (p *Pool) place(requested uint64, _ pool.Stream) (pool.Block, error) {
	if requested > pool.MostBytes {
		return pool.Block{}, fmt.Errorf("%w: no device has as much", pool.ErrTooLarge)
	}
	size := p.align(requested + p.descriptor)
	if size > p.maximum {
		h, err := p.table.Grow(size)
		if err != nil {
			return pool.Block{}, err
		}
		p.huge++
		p.hugeBytes += size
		return p.table.Take(h, requested), nil
	}
	block, found := p.table.Serve(size, requested, 0)
	if !found {
		refill := p.again
		if p.refills() == 0 {
			refill = p.first
		}
		h, err := p.table.Grow(max(refill, size))
		if err != nil {
			return pool.Block{}, err
		}
		p.table.Add(h)
		block, _ = p.table.Serve(size, requested, 0)
	}
	return block, nil
}

// refills returns the number of segments that blocks are split from.
func (p *Pool) refills() uint64 { return p.table.Stats().Segments - p.huge }

// reuse gives a block above max_chunk back to the source at once.
func (p *Pool) reuse(address uintptr, h chunks.Handle) error {
	size := p.table.At(h).Size
	if size <= p.maximum {
		return p.table.Reuse(address, h)
	}
	if err := p.table.ReturnWhole(h); err != nil {
		return err
	}
	p.huge--
	p.hugeBytes -= size
	return nil
}

// end makes even a block above max_chunk a free chunk, which the next Trim gives back.
func (p *Pool) end(_ uintptr, h chunks.Handle) {
	p.huge, p.hugeBytes = 0, 0
	p.table.Add(h)
}

// Detail is what the kind counts beyond pool.Stats. Used and Free count refills, as Paddle's totals do.
type Detail struct {
	Used        uint64 `json:"used_bytes"`
	Free        uint64 `json:"free_bytes"`
	Huge        uint64 `json:"huge_bytes"`
	HugeBlocks  uint64 `json:"huge_blocks"`
	FreeChunks  uint64 `json:"free_chunks"`
	LargestFree uint64 `json:"largest_free_chunk_bytes"`
}

func (p *Pool) detail() any {
	stats := p.table.Stats()
	return Detail{
		Used:        stats.Live - p.hugeBytes,
		Free:        stats.Reserved - stats.Live,
		Huge:        p.hugeBytes,
		HugeBlocks:  p.huge,
		FreeChunks:  uint64(p.table.FreeChunks()),
		LargestFree: p.table.Largest(),
	}
}
