// Package paddle is PaddlePaddle's BuddyAllocator, which despite its name is best fit with coalescing:
// free chunks in one set ordered by size, split to the exact size and joined with their buddies, the
// neighbours to the left and right. Blocks above a limit go straight to the system allocator, which is
// the source here. Rules as in paddle/fluid/memory/detail/buddy_allocator.cc.
package paddle

import (
	"fmt"
	"sync"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
)

const granularity = 256 // chunk sizes are multiples of it

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	mu    sync.Mutex
	table *chunks.Table
	free  ordered.Set // free chunks by size and address

	huge      map[uintptr]huge
	hugeBytes uint64

	minimum, maximum uint64 // of a chunk that is cut from a refill
	first, again     uint64 // bytes of a refill, of an empty pool and later
	descriptor       uint64
}

// New makes an empty pool. Streams are ignored: in Paddle one stream computes per device.
//
//	min_chunk   bytes that sizes are rounded up to a multiple of, itself a multiple of 256 (256)
//	max_chunk   the largest chunk, in bytes; what is larger gets a segment of its own (the larger of the
//	            next two)
//	initial     bytes of the first refill (max_chunk, or 1 GiB; Paddle takes 92 % of the device)
//	reallocate  bytes of later refills (the same)
//	descriptor  bytes added to each request for the descriptor that Paddle makes room for (64, as in
//	            2020; here it keeps sizes faithful and nothing is written there)
//
// Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (*Pool, error) {
	minimum := options.Bytes("min_chunk", granularity)
	maximum := options.Bytes("max_chunk", 0)
	refill := maximum
	if refill == 0 {
		refill = 1 << 30
	}
	first := options.Bytes("initial", refill)
	again := options.Bytes("reallocate", refill)
	if maximum == 0 {
		maximum = max(first, again)
	}
	descriptor := options.Bytes("descriptor", 64)
	if err := options.Err(); err != nil {
		return nil, err
	}
	if minimum == 0 || minimum%granularity != 0 {
		return nil, fmt.Errorf("%w: min_chunk=%d: give a multiple of %d", pool.ErrOption, minimum, granularity)
	}
	if maximum < minimum {
		return nil, fmt.Errorf("%w: max_chunk=%d is less than min_chunk=%d", pool.ErrOption, maximum, minimum)
	}
	p := &Pool{
		table:      chunks.New("paddle", source),
		huge:       map[uintptr]huge{},
		minimum:    minimum,
		maximum:    maximum,
		descriptor: descriptor,
	}
	p.first, p.again = p.align(first), p.align(again)
	return p, nil
}

func (p *Pool) align(size uint64) uint64 {
	return (size + p.minimum - 1) / p.minimum * p.minimum
}

// Malloc is pool.Pool.Malloc.
func (p *Pool) Malloc(size uint64, _ pool.Stream) (pool.Block, error) {
	if size == 0 {
		return pool.Block{}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	block, err := p.malloc(size)
	if err != nil {
		return pool.Block{}, p.table.Refuse(size, err, p.advice(size))
	}
	return block, nil
}

// advice names the option that decides how much is asked of the source for a block.
func (p *Pool) advice(requested uint64) string {
	switch {
	case requested > p.maximum:
		return "free something, or ask for less"
	case len(p.table.Segments()) == 0:
		return "free something, ask for less, or give a smaller initial="
	default:
		return "free something, ask for less, or give a smaller reallocate="
	}
}

func (p *Pool) malloc(requested uint64) (pool.Block, error) {
	if requested > pool.MostBytes {
		return pool.Block{}, fmt.Errorf("%w: no device has as much", pool.ErrTooLarge)
	}
	size := p.align(requested + p.descriptor)
	if size > p.maximum {
		return p.mallocHuge(size, requested)
	}
	if e, found := p.free.Ceiling(ordered.Fit(size, 0)); found {
		return p.take(chunks.Handle(e.Value), size, requested), nil
	}
	h, err := p.refill(size)
	if err != nil {
		return pool.Block{}, err
	}
	return p.take(h, size, requested), nil
}

// refill adds a segment in which size bytes fit, and returns it as a free chunk.
func (p *Pool) refill(size uint64) (chunks.Handle, error) {
	amount := p.again
	if len(p.table.Segments()) == 0 {
		amount = p.first
	}
	h, err := p.table.Grow(max(amount, size))
	if err != nil {
		return chunks.None, err
	}
	p.list(h)
	return h, nil
}

// take hands out the first size bytes of a free chunk; the rest becomes its right buddy.
func (p *Pool) take(h chunks.Handle, size, requested uint64) pool.Block {
	p.unlist(h)
	if p.table.At(h).Size > size {
		p.list(p.table.Split(h, size))
	}
	return p.table.Take(h, requested)
}

// Free is pool.Pool.Free.
func (p *Pool) Free(address uintptr) error {
	if address == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if block, found := p.huge[address]; found {
		return p.freeHuge(address, block)
	}
	h, err := p.table.Give(address)
	if err != nil {
		return err
	}
	p.coalesce(h)
	return nil
}

// coalesce lists a free chunk, joined with its buddies where they are free.
func (p *Pool) coalesce(h chunks.Handle) {
	if right := p.table.At(h).Next; p.table.IsFree(right) {
		p.unlist(right)
		p.table.Join(h)
	}
	if left := p.table.At(h).Previous; p.table.IsFree(left) {
		p.unlist(left)
		p.table.Join(left)
		h = left
	}
	p.list(h)
}

func (p *Pool) list(h chunks.Handle) {
	c := p.table.At(h)
	p.free.Insert(ordered.Fit(c.Size, c.Address), uint32(h))
}

func (p *Pool) unlist(h chunks.Handle) {
	c := p.table.At(h)
	p.free.Remove(ordered.Fit(c.Size, c.Address))
}

// Trim is pool.Pool.Trim. (BuddyAllocator::Release)
func (p *Pool) Trim() (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.GiveBack(p.unlist)
}

// Destroy is pool.Pool.Destroy. What the source refuses stays as free memory of the pool.
func (p *Pool) Destroy() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endHuge()
	p.table.GiveAll(p.coalesce)
	_, err := p.table.GiveBack(p.unlist)
	return err
}
