// Package streams makes a kind of pool that ignores streams safe for several of them, and for CUDA graphs: each stream,
// and each private pool of graphs, has a part: its own pool of the kind, over one source. So only later work in a freed
// block's own stream overwrites it. The parts' ledgers record the blocks; a directory of the segments finds the part.
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
	kind   string
	fresh  func(pool.Source) (pool.Pool, error)
	source *shared

	mu       sync.Mutex // never held while a part makes a block
	parts    map[pool.Stream]*part
	failures uint64
	uses     multistream.Uses
	multistream.Graphs[*part]
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
		kind: own.Stats().Kind, fresh: fresh, parts: map[pool.Stream]*part{},
		source: &shared{under: source, account: ledger.NewAccount("", source)}, uses: multistream.NewUses(source),
	}
	p.Graphs = multistream.NewGraphs(&p.mu, func() (*part, error) { return p.newPart(0, map[uint64][]uintptr{}) })
	return p, nil
}

// Malloc is pool.Pool.Malloc. Before it fails for lack of memory, it gives back what other streams' parts do not need,
// except during a capture.
func (p *Pool) Malloc(size uint64, stream pool.Stream) (made pool.Block, err error) {
	if size == 0 {
		return pool.Block{}, nil
	}
	own, err := p.partOf(stream)
	if err == nil {
		made, err = own.pool.Malloc(size, stream)
	}
	if errors.Is(err, pool.ErrOutOfMemory) {
		if freed, _ := p.Trim(); freed > 0 {
			made, err = own.pool.Malloc(size, stream)
		}
	}
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failures++
	}
	return made, err
}

// partOf returns the part that a stream allocates from now.
func (p *Pool) partOf(stream pool.Stream) (*part, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uses.Held() > 0 && !p.Capturing() {
		if err := p.uses.Settle(false, p.Release); err != nil {
			return nil, err
		}
	}
	if graph, captured := p.Captured(stream); captured {
		return graph, nil
	}
	if known := p.parts[stream]; known != nil {
		return known, nil
	}
	made, err := p.newPart(stream, nil)
	if err == nil {
		p.parts[stream] = made
	}
	return made, err
}

// owner returns the part in whose segments an address lies. Errors: pool.ErrInvalidAddress.
func (p *Pool) owner(address uintptr) (*part, error) {
	own, found := p.source.directory.Find(address)
	if !found {
		return nil, fmt.Errorf("%s pool: %#x: %w", p.kind, address, pool.ErrInvalidAddress)
	}
	return own, nil
}

// in makes a call to the pool of an address's part.
func (p *Pool) in(address uintptr, call func(pool.Pool, uintptr) error) error {
	own, err := p.owner(address)
	if err != nil {
		return err
	}
	return call(own.pool, address)
}

func (p *Pool) Check(address uintptr) error   { return p.in(address, pool.Pool.Check) }
func (p *Pool) Hold(address uintptr) error    { return p.in(address, pool.Pool.Hold) }
func (p *Pool) Release(address uintptr) error { return p.in(address, pool.Pool.Release) }
func (p *Pool) Restore(address uintptr) error { return p.in(address, pool.Pool.Restore) }

// Free is pool.Pool.Free. A block that other streams used becomes free when they are done. Errors:
// pool.ErrInvalidAddress, or that of recording an event, after which the block is still live.
func (p *Pool) Free(address uintptr) error {
	if address == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.uses.Any() {
		return p.in(address, pool.Pool.Free)
	}
	if err := p.Check(address); err != nil {
		return err
	}
	used, err := p.uses.Hold(address, p.Capturing())
	switch {
	case err != nil:
		return err
	case used:
		return p.Hold(address)
	}
	return p.in(address, pool.Pool.Free)
}

func (p *Pool) RecordStream(address uintptr, stream pool.Stream) error {
	if address == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	own, err := p.owner(address)
	if err == nil {
		err = own.pool.Check(address)
	}
	if err == nil && (own.returned != nil || stream != own.stream) { // any stream may have captured a graph's block
		p.uses.Note(address, stream)
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
	err = p.uses.Settle(true, p.Release)
	for _, stream := range slices.Sorted(maps.Keys(p.parts)) {
		err = errors.Join(err, p.parts[stream].trim())
	}
	p.Dissolve(func(graph *part) { err = errors.Join(err, graph.trim()) })
	return before - min(before, p.source.stats().Reserved), err
}

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
	stats, own := p.source.whole.Blocks(), p.source.stats()
	stats.Kind, stats.Failures = p.kind, p.failures
	stats.Reserved, stats.PeakReserved, stats.Segments = own.Reserved, own.PeakReserved, own.Segments
	stats.SourceMallocs, stats.SourceFrees = own.SourceMallocs, own.SourceFrees
	stats.SourceFailures = own.SourceFailures
	stats.Detail = detail{Streams: len(p.parts), Graphs: len(p.Private()), Waiting: p.uses.Held()}
	return stats
}

// Snapshot is pool.Pool.Snapshot. A segment of graphs has stream 0.
func (p *Pool) Snapshot() []pool.Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []pool.Segment
	for _, own := range slices.Concat(slices.Collect(maps.Values(p.parts)), p.Private()) {
		for _, s := range own.segments() {
			s.Stream = own.stream
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b pool.Segment) int { return cmp.Compare(a.Address, b.Address) })
	return all
}

func (p *Pool) ResetPeakStats() {
	p.source.whole.ResetPeakStats()
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
	err := p.uses.Abandon(p.Release)
	for _, stream := range slices.Sorted(maps.Keys(p.parts)) {
		if failed := p.parts[stream].pool.Destroy(); failed != nil {
			err = errors.Join(err, failed)
			continue // the next Trim tries again what the source refused
		}
		delete(p.parts, stream)
	}
	p.Dissolve(func(graph *part) { err = errors.Join(err, graph.pool.Destroy(), graph.trim()) })
	return err
}
