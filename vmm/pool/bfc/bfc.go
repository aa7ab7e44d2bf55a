// Package bfc is best fit with coalescing, by the rules of TensorFlow's xla/tsl/framework/bfc_allocator.cc: a request
// gets the smallest free chunk that fits, split if it is much too large, and a freed chunk joins its free neighbours.
package bfc

import (
	"errors"
	"fmt"

	"tms/internal/aid/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ledger"
)

const (
	granularity = 256 // sizes and addresses are multiples of it
	unlimited   = pool.MostBytes
	firstRegion = 2 << 20   // bytes of the first region of a pool that grows
	maxPadding  = 128 << 20 // bytes by which a block may be too large, without fragmentation_fraction

	deviceGranule = 2 << 20 // bytes, on all devices so far (cuMemGetAllocationGranularity)
)

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	ledger.Base[chunks.Handle]
	table  chunks.BestFit
	joined func(below, above uintptr) bool // whether regions that touch are joined; nil if they never are
	memory pool.Memory                     // nil if the source does not know

	limit   uint64 // bytes that may be reserved
	given   bool   // set by memory_limit, not by the device
	grows   bool
	region  uint64 // bytes of the next region, while the limit allows
	padding uint64 // a chunk is not split if it is too large by less than this and by less than its half
	collect bool
	largest uint64 // size of the largest block so far

}

// New makes an empty pool. Blocks are multiples of 256 bytes. It ignores streams: in TensorFlow one stream computes per
// device. Regions that touch are joined if the source is a pool.Coalescer.
//
//	memory_limit            bytes the pool may reserve, rounded down to 256 (the device's memory; none if the source
//	                        does not know that)
//	allow_growth            regions of 2 MiB and doubling, in place of one of memory_limit at the first need (true)
//	garbage_collection      give idle regions back if that makes room for a larger one (false)
//	fragmentation_fraction  a block may be too large by this part of memory_limit, or with 0 by 128 MiB (0)
//
// Errors: pool.ErrOption, or the source's from its Memory.
func New(source pool.Source, options *pool.Options) (pool.Pool, error) {
	p := &Pool{
		limit:   options.Bytes("memory_limit", unlimited),
		grows:   options.Bool("allow_growth", true),
		collect: options.Bool("garbage_collection", false),
		padding: maxPadding,
	}
	fraction := options.Fraction("fragmentation_fraction", 0)
	if err := options.Err(); err != nil {
		return nil, err
	}
	p.memory, _ = source.(pool.Memory)
	if p.given = p.limit != unlimited; !p.given && p.memory != nil {
		_, total, err := p.memory.Memory()
		if err != nil {
			return nil, fmt.Errorf("reading the device's memory: %w", err)
		}
		if total > 0 {
			p.limit = total
		}
	}
	limit := p.limit
	p.limit &^= granularity - 1
	p.table.Open("bfc", source)
	p.Open(&p.table.Ledger, ledger.Placement[chunks.Handle]{Place: p.place, Reuse: p.table.Reuse, Trim: p.trim,
		Advice: func(uint64) string { return "" }, Detail: func() any { return p.detail() }}) // the errors have it
	if s, ok := source.(pool.Coalescer); ok && s.Reserve(&pool.Room{Bytes: p.limit}) {
		p.joined = s.Coalesces
	}
	if p.limit == 0 {
		return nil, fmt.Errorf("%w: memory_limit=%d: give at least %d", pool.ErrOption, limit, granularity)
	}
	if p.limit == unlimited && (!p.grows || fraction > 0) {
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

// place tries a free chunk, then a new region, then a new region in place of idle ones.
func (p *Pool) place(size uint64, _ pool.Stream) (pool.Block, error) {
	if size > p.limit {
		what, advice := "memory_limit is", "raise it"
		if !p.given {
			what, advice = "the device has", "ask for less"
		}
		return pool.Block{}, fmt.Errorf("%w: %s %s; %s", pool.ErrTooLarge, what, readable.Bytes(p.limit), advice)
	}
	rounded := (size + granularity - 1) &^ (granularity - 1)
	block, found := p.table.Serve(rounded, size, p.padding)
	if !found {
		err := p.extend(rounded)
		if errors.Is(err, pool.ErrOutOfMemory) && p.giveBackIdle(rounded) {
			err = p.extend(rounded)
		}
		if err != nil {
			return pool.Block{}, err
		}
		block, _ = p.table.Serve(rounded, size, p.padding)
	}
	p.largest = max(p.largest, block.Size)
	return block, nil
}

// trim lets a pool that then holds nothing grow like a new one.
func (p *Pool) trim() error {
	err := p.table.Trim()
	if p.table.Stats().Segments == 0 {
		p.region = p.initialRegion()
	}
	return err
}
