// Package streams makes a kind of pool that ignores streams safe for several of them, and for CUDA
// graphs: each stream, and each private pool of graphs, has a pool of the kind to itself, over one
// source. So what a block held is overwritten only by work that comes after it in its stream.
package streams

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/addresses"
)

// Pool is a pool.Pool, pool.StreamRecorder and pool.GraphPools.
type Pool struct {
	kind   string
	fresh  func(pool.Source) (pool.Pool, error)
	events pool.Events
	source *shared

	mu       sync.Mutex // never held while a pool beneath makes a block
	pools    map[pool.Stream]pool.Pool
	graphs   map[pool.GraphPoolID]*graph
	captures []capture
	live     addresses.Table[block]
	uses     map[uintptr][]pool.Stream // of blocks that other streams use, until their events are recorded
	waiting  []waiting                 // freed, for the events of other streams
	deferred []waiting                 // freed during a capture, events to be recorded after it
	stats    pool.Stats
}

// block is one that a caller holds.
type block struct {
	stream    pool.Stream
	requested uint64
	size      uint64
	owner     pool.Pool
}

type waiting struct {
	address uintptr
	owner   pool.Pool
	events  []pool.Event
}

// New makes an empty pool over a source that is also a pool.Events. fresh makes pools of the kind; one
// that is a pool.StreamRecorder and pool.GraphPools itself is returned as it is.
// Errors: those of fresh; pool.ErrOption for a source without events.
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
	return &Pool{
		kind: own.Stats().Kind, fresh: fresh, events: events, source: &shared{under: source},
		pools: map[pool.Stream]pool.Pool{}, graphs: map[pool.GraphPoolID]*graph{}, uses: map[uintptr][]pool.Stream{},
	}, nil
}

// Malloc is pool.Pool.Malloc. Before it fails for want of memory, what other streams' pools do not
// need is given back to the source; not during a capture.
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
		p.stats.Failures++
		return pool.Block{}, err
	}
	p.live.Insert(made.Address, block{stream, size, made.Size, owner})
	p.stats.Mallocs++
	p.stats.Requested += size
	p.stats.Live += made.Size
	p.stats.PeakRequested = max(p.stats.PeakRequested, p.stats.Requested)
	p.stats.PeakLive = max(p.stats.PeakLive, p.stats.Live)
	return made, nil
}

// poolOf returns the pool that a stream allocates from now.
func (p *Pool) poolOf(stream pool.Stream) (pool.Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.captures) == 0 {
		if err := p.settle(p.events.Query); err != nil {
			return nil, err
		}
	}
	for _, c := range p.captures {
		if c.filter == nil || c.filter(stream) {
			return c.graph.pool, nil
		}
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

// Free is pool.Pool.Free. A block that other streams have used comes back when they are done.
// Errors: pool.ErrInvalidAddress, or that of recording an event; the block is then still live.
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
	w := waiting{address: address, owner: b.owner}
	switch {
	case len(p.uses) == 0 || len(p.uses[address]) == 0:
		if err := w.owner.Free(address); err != nil {
			return err
		}
	case len(p.captures) > 0: // events may not be recorded now
		p.deferred = append(p.deferred, w)
	default:
		if err := p.record(w); err != nil {
			return err
		}
	}
	p.live.Remove(address)
	p.forget(b)
	p.stats.Frees++
	return nil
}

func (p *Pool) forget(b block) {
	p.stats.Requested -= b.requested
	p.stats.Live -= b.size
}

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
	if stream != b.stream && !slices.Contains(p.uses[address], stream) {
		p.uses[address] = append(p.uses[address], stream)
	}
	return nil
}

// record makes an event in each stream that used a block. After an error nothing has changed.
func (p *Pool) record(w waiting) error {
	for _, stream := range p.uses[w.address] {
		event, err := p.events.Record(stream)
		if err != nil {
			p.end(w.events)
			return fmt.Errorf("recording an event for %#x: %w", w.address, err)
		}
		w.events = append(w.events, event)
	}
	delete(p.uses, w.address)
	p.waiting = append(p.waiting, w)
	return nil
}

func (p *Pool) end(events []pool.Event) {
	for _, event := range events {
		_ = p.events.Destroy(event)
	}
}

// settle gives the blocks whose events are done back to their pools.
func (p *Pool) settle(done func(pool.Event) (bool, error)) error {
	for len(p.deferred) > 0 {
		if err := p.record(p.deferred[0]); err != nil {
			return err
		}
		p.deferred = p.deferred[1:]
	}
	var failed error
	kept := p.waiting[:0]
	for _, w := range p.waiting {
		for len(w.events) > 0 {
			ready, err := done(w.events[0])
			failed = errors.Join(failed, err)
			if !ready {
				break
			}
			p.end(w.events[:1])
			w.events = w.events[1:]
		}
		if len(w.events) == 0 {
			if err := w.owner.Free(w.address); err == nil {
				continue
			} else {
				failed = errors.Join(failed, err)
			}
		}
		kept = append(kept, w)
	}
	p.waiting = kept
	return failed
}

func (p *Pool) synchronize(event pool.Event) (bool, error) {
	err := p.events.Synchronize(event)
	return err == nil, err
}

// Trim is pool.Pool.Trim, of all streams and of the graphs that are gone.
// Errors: pool.ErrCapturing, the source's or its events'.
func (p *Pool) Trim() (freed uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.captures) > 0 {
		return 0, pool.ErrCapturing
	}
	before := p.source.reserved()
	err = p.settle(p.synchronize)
	for _, stream := range slices.Sorted(maps.Keys(p.pools)) {
		_, failed := p.pools[stream].Trim()
		err = errors.Join(err, failed)
	}
	for id, g := range p.graphs {
		if g.uses == 0 {
			err = errors.Join(err, p.dissolve(id, g))
		}
	}
	return before - min(before, p.source.reserved()), err
}

// SetMemoryFraction limits what all streams hold together to a part, from 0 to 1, of the device's memory.
// Errors: pool.ErrOption for other numbers or a source that is no pool.Memory, or the source's.
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
	stats := p.stats
	stats.Kind = p.kind
	stats.Blocks = uint64(p.live.Len())
	p.source.count(&stats)
	stats.Detail = Detail{Streams: len(p.pools), Graphs: len(p.graphs), Waiting: len(p.waiting) + len(p.deferred)}
	return stats
}

// ResetPeakStats is pool.Pool.ResetPeakStats.
func (p *Pool) ResetPeakStats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.PeakRequested, p.stats.PeakLive = p.stats.Requested, p.stats.Live
	p.source.resetPeak()
}

// Detail is Stats.Detail.
type Detail struct {
	Streams int `json:"streams"` // that have a pool
	Graphs  int `json:"graphs"`  // private pools of graphs
	Waiting int `json:"waiting"` // blocks freed, for other streams to be done with them
}

// Destroy is pool.Pool.Destroy. Captures end, private pools go, recorded streams are waited for.
func (p *Pool) Destroy() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.captures = nil
	err := p.settle(p.synchronize)
	for _, w := range p.waiting {
		p.end(w.events)
	}
	p.waiting, p.deferred, p.uses = nil, nil, map[uintptr][]pool.Stream{}
	for _, stream := range slices.Sorted(maps.Keys(p.pools)) {
		if failed := p.pools[stream].Destroy(); failed != nil {
			err = errors.Join(err, failed)
			continue // what the source refused stays for the next Trim
		}
		delete(p.pools, stream)
	}
	for id, g := range p.graphs {
		g.uses = 0
		err = errors.Join(err, g.pool.Destroy(), p.dissolve(id, g))
	}
	for _, b := range p.live.All() {
		p.forget(b)
	}
	p.live = addresses.Table[block]{}
	return err
}
