package caching

import (
	"errors"
	"fmt"
	"math"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ledger"
	"tms/vmm/pool/internal/multistream"
	"tms/vmm/pool/internal/ordered"
)

// maxRequest is the most that one call may ask for, 1 EB.
const maxRequest = 1 << 60

// Pool is a pool.Pool, pool.StreamRecorder and pool.GraphPools.
type Pool struct {
	ledger.Base[handle]
	table  chunks.Table[state]
	source pool.Source // of the table
	events pool.Events // nil if the source has none

	maxSplit  uint64
	divisions divisions
	threshold float64 // of garbage collection, or 0
	total     uint64
	device    int

	smallPool, largePool blockPool
	lists                []*freeList // of all pools, or nil where the number is not in use

	multistream.Graphs[*graphPool]
	uses multistream.Uses

	limited bool   // a memory fraction is set
	allowed uint64 // bytes, when limited

	stats
}

// New returns a pool over source, which may also be a pool.Memory or a pool.Events. Options:
//
//	max_split_size=none               blocks from here on are not split, nor for smaller requests; over 20, whole MiB
//	roundup_power2_divisions=none     sizes are rounded up to one of N steps between powers of
//	                                  two: N is a power of two for all sizes, or one for each of
//	                                  [256:1,512:2,1024:4,>:8], intervals by their start in MiB
//	garbage_collection_threshold=0    the part of a memory fraction, below 1, above which old blocks go back (0 never)
//	memory_fraction=none              as SetMemoryFraction
//	total=0                           the device's memory in bytes, for a source that does not know it
//	device=0                          the ordinal in out of memory errors (the source's Ordinal, if it has one)
//
// Errors: pool.ErrOption, or the source's from its Memory.
func New(source pool.Source, options *pool.Options) (pool.Pool, error) {
	ordinal := 0
	if known, ok := source.(interface{ Ordinal() int }); ok {
		ordinal = known.Ordinal()
	}
	p := &Pool{
		source:    source,
		maxSplit:  options.Bytes("max_split_size", math.MaxUint64),
		threshold: options.Fraction("garbage_collection_threshold", 0),
		total:     options.Bytes("total", 0),
		device:    options.Int("device", ordinal),
	}
	fraction := options.Fraction("memory_fraction", -1)
	rounding := options.Text("roundup_power2_divisions", "")
	if err := options.Err(); err != nil {
		return nil, err
	}
	if p.maxSplit != math.MaxUint64 && (p.maxSplit <= largeSegment || p.maxSplit%(1<<20) != 0) {
		return nil, fmt.Errorf("%w: max_split_size=%d: give whole MiB, more than 20", pool.ErrOption, p.maxSplit)
	}
	if p.threshold == 1 {
		return nil, fmt.Errorf("%w: garbage_collection_threshold=1: give less than 1", pool.ErrOption)
	}
	var err error
	if p.divisions, err = parseDivisions(rounding); err != nil {
		return nil, err
	}
	p.events, _ = source.(pool.Events)
	p.uses = multistream.NewUses(p.events)
	p.Graphs = multistream.NewGraphs(&p.Mutex, newGraphPool)
	p.smallPool.small = true
	p.table.Open("caching", source)
	p.Open(&p.table.Ledger, ledger.Placement[handle]{Place: p.place, Reuse: p.reuse, Trim: p.trim,
		Detail: func() any { return p.detail() }})
	if fraction >= 0 {
		if err := p.SetMemoryFraction(fraction); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// place is for pool.Pool.Malloc, whose pool.ErrOutOfMemory is that of outOfMemory.
func (p *Pool) place(size uint64, stream pool.Stream) (pool.Block, error) {
	if size > maxRequest {
		return pool.Block{}, fmt.Errorf("CUDA out of memory. Tried to allocate more than 1EB: %w; ask for less",
			pool.ErrTooLarge)
	}
	if p.uses.Held() > 0 && !p.Capturing() {
		if err := p.uses.Settle(false, p.back); err != nil {
			return pool.Block{}, err
		}
	}
	rounded := p.divisions.round(size)
	from := p.poolFor(rounded, stream)
	h := p.fit(from, rounded, stream)
	if h == none {
		var err error
		if h, err = p.extend(from, rounded, stream); err != nil {
			return pool.Block{}, err
		}
	}
	p.split(h, rounded)
	made := p.table.Take(h, size)
	p.countMalloc(p.at(h))
	return made, nil
}

// fit takes the smallest free block that a request of the size may use, and returns none if there is no such block.
func (p *Pool) fit(from *blockPool, size uint64, stream pool.Stream) handle {
	if p.collecting() {
		from.clock++
	}
	l := from.freeListOf(stream)
	if l == nil {
		return none
	}
	found, _ := l.free.Ceiling(ordered.Fit(size, 0))
	h := handle(found.Value)
	b := p.at(h)
	switch {
	case h == none:
		return none
	case size < p.maxSplit && b.Size >= p.maxSplit: // large blocks are for large requests
		return none
	case size >= p.maxSplit && b.Size >= size+largeSegment: // large blocks are not split: bound the loss
		return none
	}
	l.free.Take(found)
	return h
}

// reuse makes a block free, or leaves that to the time when the other streams that used the block are done. Errors:
// that of recording an event.
func (p *Pool) reuse(address uintptr, h handle) error {
	held := false
	if p.uses.Any() {
		var err error
		if held, err = p.uses.Hold(address, p.Capturing()); err != nil {
			return err
		}
	}
	if !held {
		p.retire(h)
		return nil
	}
	b := p.at(h)
	p.countFree(b)
	b.Own.pending = true
	p.table.Keep(address, h)
	return nil
}

// trim is releaseCached without a capture. (emptyCache) Errors: pool.ErrCapturing, the source's or its events'.
func (p *Pool) trim() error {
	if p.Capturing() {
		return pool.ErrCapturing
	}
	return p.releaseCached()
}

// Destroy is pool.Pool.Destroy. It also ends captures and graph pools, and waits for recorded streams.
func (p *Pool) Destroy() error {
	p.Lock()
	defer p.Unlock()
	p.Graphs.Abandon()
	err := p.uses.Abandon(p.back)
	p.table.Empty(func(_ uintptr, h handle) { p.retire(h) })
	return errors.Join(err, p.trim())
}

// RecordStream is pool.StreamRecorder.RecordStream. Errors: also pool.ErrOption for a source without events.
func (p *Pool) RecordStream(address uintptr, stream pool.Stream) error {
	if address == 0 {
		return nil
	}
	p.Lock()
	defer p.Unlock()
	h, err := p.table.Find(address)
	if err != nil {
		return err
	}
	if p.events == nil {
		return fmt.Errorf("%w: caching needs a source with events to serve several streams", pool.ErrOption)
	}
	if stream != p.listOf(p.at(h)).stream {
		p.uses.Note(address, stream)
	}
	return nil
}

// back makes a held block free.
func (p *Pool) back(address uintptr) error {
	h, err := p.table.Release(address)
	if err == nil {
		p.retire(h)
	}
	return err
}
