// Package bfc is best fit with coalescing, TensorFlow's BFCAllocator: free chunks wait in bins by size,
// the smallest that fits is split if it is much too large, and a freed chunk is joined with its free
// neighbours. Rules as in xla/tsl/framework/bfc_allocator.cc.
package bfc

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"tms/internal/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
)

const (
	granularity = 256 // sizes and addresses are multiples of it
	unlimited   = pool.MostBytes
	firstRegion = 2 << 20   // bytes of the first region of a pool that grows
	maxPadding  = 128 << 20 // bytes a block may be too large by, unless fragmentation_fraction says
)

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	mu    sync.Mutex
	table *chunks.Table

	free ordered.Set // free chunks by size and address

	limit   uint64 // bytes that may be reserved
	grows   bool
	region  uint64 // bytes of the next region, while the limit allows
	padding uint64 // a chunk too large by less than this, and by less than its half, is not split
	collect bool
	largest uint64 // size of the largest block so far

	counter  func() uint64 // nil: chunks are not stamped
	frontier uint64
	latest   uint64      // stamp so far
	stamps   []uint64    // by handle: when the free chunk was freed, 0 for safe
	stamped  ordered.Set // free chunks with a stamp, by stamp

	patience time.Duration
	freed    sync.Cond
}

// New makes an empty pool. Blocks are multiples of 256 bytes. Streams are ignored: in TensorFlow one
// stream computes per device; see SetTimingCounter for reuse across streams.
//
//	memory_limit            bytes the pool may reserve (what the source has)
//	allow_growth            true: regions of 2 MiB and doubling; false: one region of memory_limit bytes
//	                        at the first need (true)
//	garbage_collection      give idle regions back when a larger region is needed (false)
//	fragmentation_fraction  a block may be too large by this part of memory_limit; 0: by 128 MiB (0)
//	retry_ms                milliseconds that a malloc waits for frees by other threads before it is out
//	                        of memory (0; TensorFlow's own default is 10000)
//
// Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (*Pool, error) {
	limit := options.Bytes("memory_limit", unlimited)
	grows := options.Bool("allow_growth", true)
	collect := options.Bool("garbage_collection", false)
	fraction := options.Fraction("fragmentation_fraction", 0)
	patience := options.Int("retry_ms", 0)
	if err := options.Err(); err != nil {
		return nil, err
	}
	p := &Pool{
		table:    chunks.New("bfc", source),
		limit:    limit &^ (granularity - 1),
		grows:    grows,
		padding:  maxPadding,
		collect:  collect,
		patience: time.Duration(patience) * time.Millisecond,
	}
	p.freed.L = &p.mu
	if p.limit == 0 {
		return nil, fmt.Errorf("%w: memory_limit=%d: give at least %d", pool.ErrOption, limit, granularity)
	}
	if p.limit == unlimited && (!grows || fraction > 0) {
		return nil, fmt.Errorf("%w: allow_growth=false and fragmentation_fraction need a memory_limit", pool.ErrOption)
	}
	if fraction > 0 {
		p.padding = max(granularity, uint64(fraction*float64(limit)))
	}
	p.region = p.initialRegion()
	return p, nil
}

func (p *Pool) initialRegion() uint64 {
	if p.grows {
		return min(p.limit, firstRegion)
	}
	return p.limit
}

// Malloc is pool.Pool.Malloc. It may hand out a chunk whose stamp is not safe yet: only work in the
// order of the stream that freed it may use it. See MallocFreedBefore.
func (p *Pool) Malloc(size uint64, _ pool.Stream) (pool.Block, error) {
	return p.MallocFreedBefore(size, 0)
}

// MallocFreedBefore is Malloc that hands out only memory which is safe, or was freed when the counter
// was at most count: memory for a stream that has waited for the others up to there. 0 takes any.
// (AllocationAttributes::freed_by_func)
func (p *Pool) MallocFreedBefore(size, count uint64) (pool.Block, error) {
	if size == 0 {
		return pool.Block{}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	block, err := p.malloc(size, count)
	if p.patience > 0 && errors.Is(err, pool.ErrOutOfMemory) {
		block, err = p.retry(size, count, err)
	}
	if err != nil {
		return pool.Block{}, p.table.Refuse(size, err, "")
	}
	return block, nil
}

// malloc goes up the ladder: a free chunk; a new region; chunks joined before they are safe, if the
// caller does not mind; a new region in the place of idle ones.
func (p *Pool) malloc(size, before uint64) (pool.Block, error) {
	if size > p.limit {
		return pool.Block{}, fmt.Errorf("%w: memory_limit is %s; raise it",
			pool.ErrTooLarge, readable.Bytes(p.limit))
	}
	rounded := (size + granularity - 1) &^ (granularity - 1)
	if h := p.fit(rounded, before); h != chunks.None {
		return p.take(h, rounded, size), nil
	}
	h, err := p.extend(rounded)
	if errors.Is(err, pool.ErrOutOfMemory) && before == 0 && p.joinUnsafe(rounded) {
		h, err = p.fit(rounded, before), nil
	}
	if errors.Is(err, pool.ErrOutOfMemory) && p.giveBackIdle(rounded) {
		h, err = p.extend(rounded)
	}
	if err != nil {
		return pool.Block{}, err
	}
	return p.take(h, rounded, size), nil
}

// take hands out a free chunk, less what is worth splitting off.
func (p *Pool) take(h chunks.Handle, rounded, requested uint64) pool.Block {
	p.unlist(h)
	if size := p.table.At(h).Size; size >= 2*rounded || size-rounded >= p.padding {
		rest := p.table.Split(h, rounded)
		p.setStamp(rest, p.stamp(h))
		p.list(rest)
	}
	p.setStamp(h, 0)
	block := p.table.Take(h, requested)
	p.largest = max(p.largest, block.Size)
	return block
}

// Free is pool.Pool.Free.
func (p *Pool) Free(address uintptr) error {
	if address == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h, err := p.table.Give(address)
	if err != nil {
		return err
	}
	p.mark(h)
	p.list(p.coalesce(h, false))
	p.freed.Broadcast()
	return nil
}

// coalesce joins a free chunk, in no bin yet, with its free neighbours and returns what it became.
// Chunks with a stamp are left alone, unless forced.
func (p *Pool) coalesce(h chunks.Handle, forced bool) chunks.Handle {
	joins := func(h chunks.Handle) bool { return p.table.IsFree(h) && (forced || p.stamp(h) == 0) }
	if !forced && p.stamp(h) != 0 {
		return h
	}
	if next := p.table.At(h).Next; joins(next) {
		p.unlist(next)
		p.join(h, next)
	}
	if previous := p.table.At(h).Previous; joins(previous) {
		p.unlist(previous)
		p.join(previous, h)
		return previous
	}
	return h
}

func (p *Pool) join(h, next chunks.Handle) {
	p.setStamp(h, max(p.stamp(h), p.stamp(next)))
	p.setStamp(next, 0)
	p.table.Join(h)
}

// Trim is pool.Pool.Trim. A pool that holds nothing afterwards grows again as a new one does.
func (p *Pool) Trim() (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trim()
}

func (p *Pool) trim() (uint64, error) {
	freed, err := p.table.GiveBack(p.forget)
	if len(p.table.Segments()) == 0 {
		p.region = p.initialRegion()
	}
	p.freed.Broadcast()
	return freed, err
}

func (p *Pool) forget(h chunks.Handle) {
	p.unlist(h)
	p.setStamp(h, 0)
}

// Destroy is pool.Pool.Destroy. What the source refuses stays as free memory of the pool.
func (p *Pool) Destroy() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.GiveAll(func(h chunks.Handle) { p.list(p.coalesce(h, true)) })
	_, err := p.trim()
	return err
}
