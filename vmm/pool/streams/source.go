package streams

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"tms/internal/aid/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
)

// shared is the source of all pools beneath, which call it under their own locks.
type shared struct {
	mu      sync.Mutex
	under   pool.DeviceSource
	account ledger.Account
	limited bool
	allowed uint64
}

func (s *shared) stats() pool.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Stats()
}

// part is the source of one pool: of a stream's, whose segments lie in a room of their own, or of a graph's. A graph's
// keeps the segments that its pool gives back, for later ones of the same size, until the graphs are gone.
type part struct {
	*shared
	room *pool.Room
	kept map[uint64][]uintptr // addresses by size; nil for a stream's pool
}

// Allocate is pool.Source.Allocate. Errors: also pool.ErrOutOfMemory beyond the memory fraction.
func (p *part) Allocate(size uint64) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept := p.kept[size]; len(kept) > 0 {
		p.kept[size] = kept[:len(kept)-1]
		return kept[len(kept)-1], nil
	}
	p.under.Reserve(p.room)
	if held := p.account.Stats().Reserved; p.limited && (size > p.allowed || held > p.allowed-size) {
		p.account.CountSourceFailure()
		return 0, fmt.Errorf("%w: a segment of %s, where the memory fraction allows %s and %s are held",
			pool.ErrOutOfMemory, readable.Bytes(size), readable.Bytes(p.allowed), readable.Bytes(held))
	}
	return p.account.Allocate(size)
}

func (p *part) Free(address uintptr, size uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept != nil {
		p.kept[size] = append(p.kept[size], address)
		return nil
	}
	return p.account.Free(address, size)
}

func (p *part) Memory() (free, total uint64, err error) { return p.under.Memory() }

// Reserve is pool.Coalescer.Reserve. A graph's segments have no room, and do not coalesce.
func (p *part) Reserve(room *pool.Room) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept != nil {
		return false
	}
	p.room = room
	return p.under.Reserve(room)
}

func (p *part) Coalesces(below, above uintptr) bool { return p.under.Coalesces(below, above) }

// keptSegments lists what the graphs' pool gave back and the part keeps.
func (p *part) keptSegments() []pool.Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	var idle []pool.Segment
	for size, addresses := range p.kept {
		for _, address := range addresses {
			idle = append(idle, pool.Fill([]pool.Segment{{Address: address, Size: size, Type: "large"}}, nil)...)
		}
	}
	return idle
}

// release gives back the kept segments. Those that the source refuses stay.
func (p *part) release() (failed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for size, addresses := range p.kept {
		p.kept[size] = slices.DeleteFunc(addresses, func(address uintptr) bool {
			err := p.account.Free(address, size)
			failed = errors.Join(failed, err)
			return err == nil
		})
		if len(p.kept[size]) == 0 {
			delete(p.kept, size)
		}
	}
	return failed
}

// graph is a private pool of graphs: it keeps its segments while a graph exists, even those that the kind gives back.
type graph struct {
	pool pool.Pool
	part *part
}

func (p *Pool) newGraph() (*graph, error) {
	own := &part{shared: p.source, kept: map[uint64][]uintptr{}}
	made, err := p.fresh(own)
	return &graph{made, own}, err
}

// Empty reports whether the pool has no segments.
func (g *graph) Empty() bool {
	reserved := g.pool.Stats().Reserved
	g.part.mu.Lock()
	defer g.part.mu.Unlock()
	return reserved == 0 && len(g.part.kept) == 0
}

// trim gives back what the pool does not need.
func (g *graph) trim() error {
	_, err := g.pool.Trim()
	return errors.Join(err, g.part.release())
}
