// Package streams makes a kind of pool that ignores streams safe for several of them, and for CUDA graphs: each stream,
// and each private pool of graphs, has its own pool of the kind, over one source. So only later work in a freed block's
// own stream overwrites it.
package streams

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/addresses"
	"tms/vmm/pool/internal/ledger"
	"tms/vmm/pool/internal/multistream"
)

// Pool is a pool.Pool, pool.StreamRecorder and pool.GraphPools.
type Pool struct {
	fresh  func(pool.Source) (pool.Pool, error)
	source *shared

	mu     sync.Mutex // never held while a pool beneath makes a block
	pools  map[pool.Stream]pool.Pool
	live   addresses.Table[block]
	blocks ledger.Account // counts without a source
	uses   multistream.Uses[owned]
	multistream.Graphs[*graph]
}

// block is a caller's block.
type block struct {
	stream    pool.Stream
	requested uint64
	size      uint64
	owner     pool.Pool
}

// owned is a block of a pool beneath.
type owned struct {
	address uintptr
	owner   pool.Pool
}

// New makes an empty pool over a source that is also a pool.Events. fresh makes pools of the kind; New returns one as
// it is if it is a pool.StreamRecorder and pool.GraphPools itself. Errors: those of fresh; pool.ErrOption for a source
// without events.
func New(source pool.Source, fresh func(pool.Source) (pool.Pool, error)) (pool.Pool, error) {
	own, err := fresh(source)
	if err != nil {
		return nil, err
	}
	_, records := own.(pool.StreamRecorder)
	if _, captures := own.(pool.GraphPools); records && captures {
		return own, nil
	}
	events, ok := source.(pool.Events)
	if !ok {
		return nil, fmt.Errorf("%w: %s needs a source with events to serve several streams",
			pool.ErrOption, own.Stats().Kind)
	}
	p := &Pool{
		fresh: fresh, pools: map[pool.Stream]pool.Pool{},
		source: &shared{under: source, account: ledger.NewAccount("", source)},
		blocks: ledger.NewAccount(own.Stats().Kind, nil), uses: multistream.NewUses[owned](events),
	}
	p.Graphs = multistream.NewGraphs(&p.mu, p.newGraph)
	return p, nil
}

// Malloc is pool.Pool.Malloc. Before it fails for lack of memory, it gives back what other streams' pools do not need,
// except during a capture.
func (p *Pool) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	if size == 0 {
		return pool.Block{}, nil
	}
	owner, err := p.poolOf(stream)
	var made pool.Block
	if err == nil {
		made, err = owner.Malloc(size, stream)
	}
	if errors.Is(err, pool.ErrOutOfMemory) {
		if freed, _ := p.Trim(); freed > 0 {
			made, err = owner.Malloc(size, stream)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.blocks.CountFailure()
		return pool.Block{}, err
	}
	p.live.Insert(made.Address, block{stream, size, made.Size, owner})
	p.blocks.CountMalloc(size, made.Size)
	return made, nil
}

// poolOf returns the pool that a stream allocates from now.
func (p *Pool) poolOf(stream pool.Stream) (pool.Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uses.Held() > 0 && !p.Capturing() {
		if err := p.uses.Settle(false, giveBack); err != nil {
			return nil, err
		}
	}
	if g, captured := p.Captured(stream); captured {
		return g.pool, nil
	}
	if known := p.pools[stream]; known != nil {
		return known, nil
	}
	made, err := p.fresh(&part{shared: p.source})
	if err == nil {
		p.pools[stream] = made
	}
	return made, err
}

// Free is pool.Pool.Free. A block that other streams used becomes free when they are done. Errors:
// pool.ErrInvalidAddress, or that of recording an event, after which the block is still live.
func (p *Pool) Free(address uintptr) error {
	if address == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, found := p.live.Find(address)
	if !found {
		return fmt.Errorf("%#x: %w", address, pool.ErrInvalidAddress)
	}
	held, err := p.uses.Hold(owned{address, b.owner}, p.Capturing())
	if err == nil && !held {
		err = b.owner.Free(address)
	}
	if err != nil {
		return err
	}
	p.live.Remove(address)
	p.blocks.CountFree(b.requested, b.size)
	return nil
}

func giveBack(b owned) error { return b.owner.Free(b.address) }

// RecordStream is pool.StreamRecorder.RecordStream.
func (p *Pool) RecordStream(address uintptr, stream pool.Stream) error {
	if address == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, found := p.live.Find(address)
	if !found {
		return fmt.Errorf("%#x: %w", address, pool.ErrInvalidAddress)
	}
	if stream != b.stream {
		p.uses.Note(owned{address, b.owner}, stream)
	}
	return nil
}

// Trim is pool.Pool.Trim for all streams, and for graphs that are gone. Errors: pool.ErrCapturing, the source's or its
// events'.
func (p *Pool) Trim() (freed uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Capturing() {
		return 0, pool.ErrCapturing
	}
	before := p.source.reserved()
	err = p.uses.Settle(true, giveBack)
	for _, stream := range slices.Sorted(maps.Keys(p.pools)) {
		_, failed := p.pools[stream].Trim()
		err = errors.Join(err, failed)
	}
	p.Dissolve(func(g *graph) { err = errors.Join(err, g.trim()) })
	return before - min(before, p.source.reserved()), err
}

// SetMemoryFraction limits all streams together to a part, from 0 to 1, of the device's memory. Errors: pool.ErrOption
// for other numbers or for a source that is no pool.Memory, or the source's.
func (p *Pool) SetMemoryFraction(fraction float64) error {
	memory, ok := p.source.under.(pool.Memory)
	if !ok {
		return fmt.Errorf("%w: a memory fraction needs a source that knows the device's memory", pool.ErrOption)
	}
	if !(fraction >= 0 && fraction <= 1) {
		return fmt.Errorf("%w: a memory fraction of %v: give 0 to 1", pool.ErrOption, fraction)
	}
	_, total, err := memory.Memory()
	if err == nil {
		p.source.limit(uint64(fraction * float64(total)))
	}
	return err
}

// Stats is pool.Pool.Stats; its Detail is a Detail.
func (p *Pool) Stats() pool.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := p.blocks.Stats()
	p.source.count(&stats)
	stats.Detail = Detail{Streams: len(p.pools), Graphs: len(p.Private()), Waiting: p.uses.Held()}
	return stats
}

// ResetPeakStats is pool.Pool.ResetPeakStats.
func (p *Pool) ResetPeakStats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocks.ResetPeakStats()
	p.source.resetPeak()
}

// Detail is Stats.Detail.
type Detail struct {
	Streams int `json:"streams"` // that have a pool
	Graphs  int `json:"graphs"`  // private pools of graphs
	Waiting int `json:"waiting"` // freed blocks that wait for other streams
}

// Destroy is pool.Pool.Destroy. It also ends captures and private pools, and waits for recorded streams.
func (p *Pool) Destroy() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Graphs.Abandon()
	err := p.uses.Abandon(giveBack)
	for _, stream := range slices.Sorted(maps.Keys(p.pools)) {
		if failed := p.pools[stream].Destroy(); failed != nil {
			err = errors.Join(err, failed)
			continue // the next Trim tries again what the source refused
		}
		delete(p.pools, stream)
	}
	p.Dissolve(func(g *graph) { err = errors.Join(err, g.pool.Destroy(), g.trim()) })
	for _, b := range p.live.All() {
		p.blocks.CountFree(b.requested, b.size)
	}
	p.live = addresses.Table[block]{}
	return err
}
