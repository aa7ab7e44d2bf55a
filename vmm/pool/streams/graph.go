package streams

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/pool"
)

// graph is a private pool of graphs: their addresses are baked in, so its segments stay while one
// exists, whatever the kind gives back.
type graph struct {
	pool pool.Pool
	held *held
	uses int // graphs
}

// capture directs streams to a private pool.
type capture struct {
	id     pool.GraphPoolID
	graph  *graph
	filter func(pool.Stream) bool
}

// BeginAllocateToPool is pool.GraphPools.BeginAllocateToPool. While any capture is under way nothing is
// given back to the source by Trim, and events are neither recorded nor asked for: CUDA forbids it.
func (p *Pool) BeginAllocateToPool(id pool.GraphPoolID, filter func(pool.Stream) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.findCapture(id) >= 0 {
		return fmt.Errorf("%w: %v is being allocated to", pool.ErrGraphPool, id)
	}
	g := p.graphs[id]
	if g == nil {
		held := &held{under: p.source, free: map[uint64][]uintptr{}}
		made, err := p.fresh(held)
		if err != nil {
			return err
		}
		g = &graph{pool: made, held: held}
		p.graphs[id] = g
	} else if g.uses == 0 {
		return fmt.Errorf("%w: %v was released and still holds memory", pool.ErrGraphPool, id)
	}
	g.uses++
	p.captures = append(p.captures, capture{id, g, filter})
	return nil
}

func (p *Pool) findCapture(id pool.GraphPoolID) int {
	return slices.IndexFunc(p.captures, func(c capture) bool { return c.id == id })
}

// EndAllocateToPool is pool.GraphPools.EndAllocateToPool.
func (p *Pool) EndAllocateToPool(id pool.GraphPoolID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.findCapture(id)
	if i < 0 {
		return fmt.Errorf("%w: %v is not being allocated to", pool.ErrGraphPool, id)
	}
	p.captures = slices.Delete(p.captures, i, i+1)
	return nil
}

// ReleasePool is pool.GraphPools.ReleasePool. Nothing is given back at once, but at the next Trim or
// shortage.
func (p *Pool) ReleasePool(id pool.GraphPoolID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.graphs[id]
	if g == nil || g.uses == 0 {
		return fmt.Errorf("%w: %v is unknown or released", pool.ErrGraphPool, id)
	}
	if g.uses == 1 && p.findCapture(id) >= 0 {
		return fmt.Errorf("%w: the last graph of %v is being captured", pool.ErrGraphPool, id)
	}
	g.uses--
	return nil
}

// dissolve gives back what a pool without graphs does not need; when that is all of it, the pool goes.
func (p *Pool) dissolve(id pool.GraphPoolID, g *graph) error {
	_, err := g.pool.Trim()
	err = errors.Join(err, g.held.release())
	if g.pool.Stats().Reserved == 0 && g.held.empty() {
		delete(p.graphs, id)
	}
	return err
}
