package caching

import (
	"fmt"
	"slices"

	"tms/vmm/pool"
)

// graphPool is a private pool of graphs: their addresses are baked in, so its segments stay while a
// graph exists, though blocks in them are freed and used again.
type graphPool struct {
	id           pool.GraphPoolID
	graphs       int // that use it; at 0 its free segments may go
	segments     int
	small, large blockPool
}

// capture directs streams to a private pool.
type capture struct {
	graph  *graphPool
	filter func(pool.Stream) bool
}

// capturing returns the private pool that a stream allocates from, nil for none.
func (p *Pool) capturing(stream pool.Stream) *graphPool {
	for _, c := range p.captures {
		if c.filter == nil || c.filter(stream) {
			return c.graph
		}
	}
	return nil
}

func (p *Pool) findGraph(id pool.GraphPoolID) *graphPool {
	for _, g := range p.graphs {
		if g.id == id {
			return g
		}
	}
	return nil
}

func (p *Pool) findCapture(id pool.GraphPoolID) int {
	return slices.IndexFunc(p.captures, func(c capture) bool { return c.graph.id == id })
}

// BeginAllocateToPool is pool.GraphPools.BeginAllocateToPool. While any capture is under way nothing
// is given back to the source and events are neither recorded nor asked for: CUDA forbids all three.
func (p *Pool) BeginAllocateToPool(id pool.GraphPoolID, filter func(pool.Stream) bool) error {
	p.Lock()
	defer p.Unlock()
	if p.findCapture(id) >= 0 {
		return fmt.Errorf("%w: %v is being allocated to", pool.ErrGraphPool, id)
	}
	g := p.findGraph(id)
	if g == nil {
		g = &graphPool{id: id}
		g.small, g.large = blockPool{small: true, graph: g}, blockPool{graph: g}
		p.graphs = append(p.graphs, g)
	} else if g.graphs == 0 {
		return fmt.Errorf("%w: %v was released and still holds memory", pool.ErrGraphPool, id)
	}
	g.graphs++
	p.captures = append(p.captures, capture{g, filter})
	return nil
}

// EndAllocateToPool is pool.GraphPools.EndAllocateToPool.
func (p *Pool) EndAllocateToPool(id pool.GraphPoolID) error {
	p.Lock()
	defer p.Unlock()
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
	p.Lock()
	defer p.Unlock()
	g := p.findGraph(id)
	if g == nil || g.graphs == 0 {
		return fmt.Errorf("%w: %v is unknown or released", pool.ErrGraphPool, id)
	}
	if g.graphs == 1 && p.findCapture(id) >= 0 {
		return fmt.Errorf("%w: the last graph of %v is being captured", pool.ErrGraphPool, id)
	}
	if g.graphs--; g.graphs == 0 && g.segments == 0 {
		p.graphs = slices.DeleteFunc(p.graphs, func(other *graphPool) bool { return other == g })
	}
	return nil
}
