// Package streams makes a kind of pool that ignores streams safe for several of them, and for CUDA graphs: each stream,
// and each private pool of graphs, has its own pool of the kind, over one source. So only later work in a freed block's
// own stream overwrites it.
package streams

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
	"tms/vmm/pool/internal/multistream"
)

// Streamed is a pool for several streams and for graphs.
type Streamed interface {
	pool.Pool
	pool.StreamRecorder
	pool.GraphPools
	// SetMemoryFraction limits all streams together to a part, from 0 to 1, of the device's memory. Errors:
	// pool.ErrOption for other numbers, or the source's.
	SetMemoryFraction(fraction float64) error
}

// Pool is a Streamed.
type Pool struct {
	fresh  func(pool.Source) (pool.Pool, error)
	source *shared

	mu    sync.Mutex // never held while a pool beneath makes a block
	pools map[pool.Stream]pool.Pool
	live  *ledger.Ledger[owner] // without a source
	uses  multistream.Uses[owned]
	multistream.Graphs[*graph]
}

// owner is whose a block is.
type owner struct {
	stream pool.Stream
	pool   pool.Pool
}

// owned is a block of a pool beneath.
type owned struct {
	address uintptr
	pool    pool.Pool
}

// New makes an empty pool over a source. fresh makes pools of the kind; New returns one as it is if it is a Streamed
// itself. Errors: those of fresh.
func New(source pool.DeviceSource, fresh func(pool.Source) (pool.Pool, error)) (Streamed, error) {
	own, err := fresh(source)
	if err != nil {
		return nil, err
	}
	if own, ok := own.(Streamed); ok {
		return own, nil
	}
	p := &Pool{
		fresh: fresh, pools: map[pool.Stream]pool.Pool{},
		source: &shared{under: source, account: ledger.NewAccount("", source)},
		live:   ledger.New[owner](own.Stats().Kind, nil), uses: multistream.NewUses[owned](source),
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
	own, err := p.poolOf(stream)
	var made pool.Block
	if err == nil {
		made, err = own.Malloc(size, stream)
	}
	if errors.Is(err, pool.ErrOutOfMemory) {
		if freed, _ := p.Trim(); freed > 0 {
			made, err = own.Malloc(size, stream)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.live.CountFailure()
		return pool.Block{}, err
	}
	b := ledger.Block[owner]{Requested: size, Size: made.Size, Owner: owner{stream, own}}
	return p.live.Enter(made.Address, b), nil
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
	b, err := p.live.Find(address)
	if err != nil {
		return err
	}
	held, err := p.uses.Hold(owned{address, b.Owner.pool}, p.Capturing())
	if err == nil && !held {
		err = b.Owner.pool.Free(address)
	}
	if err == nil {
		_, err = p.live.Remove(address)
	}
	return err
}

func giveBack(b owned) error { return b.pool.Free(b.address) }

func (p *Pool) RecordStream(address uintptr, stream pool.Stream) error {
	if address == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.live.Find(address)
	if err == nil && stream != b.Owner.stream {
		p.uses.Note(owned{address, b.Owner.pool}, stream)
	}
	return err
}

// Trim is pool.Pool.Trim for all streams and for graphs that are gone. Errors: also pool.ErrCapturing, those of events.
func (p *Pool) Trim() (freed uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Capturing() {
		return 0, pool.ErrCapturing
	}
	before := p.source.stats().Reserved
	err = p.uses.Settle(true, giveBack)
	for _, stream := range slices.Sorted(maps.Keys(p.pools)) {
		_, failed := p.pools[stream].Trim()
		err = errors.Join(err, failed)
	}
	p.Dissolve(func(g *graph) { err = errors.Join(err, g.trim()) })
	return before - min(before, p.source.stats().Reserved), err
}

// SetMemoryFraction is Streamed.SetMemoryFraction.
func (p *Pool) SetMemoryFraction(fraction float64) error {
	if !(fraction >= 0 && fraction <= 1) {
		return fmt.Errorf("%w: a memory fraction of %v: give 0 to 1", pool.ErrOption, fraction)
	}
	_, total, err := p.source.under.Memory()
	if err != nil {
		return err
	}
	p.source.mu.Lock()
	defer p.source.mu.Unlock()
	p.source.limited, p.source.allowed = true, uint64(fraction*float64(total))
	return nil
}

// Stats is pool.Pool.Stats; its Detail is a detail.
func (p *Pool) Stats() pool.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats, own := p.live.Stats(), p.source.stats()
	stats.Reserved, stats.PeakReserved, stats.Segments = own.Reserved, own.PeakReserved, own.Segments
	stats.SourceMallocs, stats.SourceFrees = own.SourceMallocs, own.SourceFrees
	stats.SourceFailures = own.SourceFailures
	stats.Detail = detail{Streams: len(p.pools), Graphs: len(p.Private()), Waiting: p.uses.Held()}
	return stats
}

// Snapshot is pool.Pool.Snapshot. A segment of graphs has stream 0.
func (p *Pool) Snapshot() []pool.Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []pool.Segment
	add := func(beneath pool.Pool, stream pool.Stream) {
		for _, s := range beneath.Snapshot() {
			s.Stream = stream
			for i, b := range s.Blocks {
				if b.State == pool.Allocated && p.uses.IsHeld(owned{b.Address, beneath}) {
					s.Blocks[i].State = pool.PendingFree
					s.Allocated -= b.Size
				}
			}
			all = append(all, s)
		}
	}
	for stream, beneath := range p.pools {
		add(beneath, stream)
	}
	for _, g := range p.Private() {
		add(g.pool, 0)
		all = append(all, g.part.keptSegments()...)
	}
	slices.SortFunc(all, func(a, b pool.Segment) int { return cmp.Compare(a.Address, b.Address) })
	return all
}

func (p *Pool) ResetPeakStats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live.ResetPeakStats()
	p.source.mu.Lock()
	defer p.source.mu.Unlock()
	p.source.account.ResetPeakStats()
}

// detail is Stats.Detail.
type detail struct {
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
	p.live.Empty(func(uintptr, ledger.Block[owner]) {})
	return err
}
