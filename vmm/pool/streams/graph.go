package streams

import (
	"errors"

	"tms/vmm/pool"
)

// graph is a private pool of graphs: it keeps its segments while a graph exists, even those that the kind gives back.
type graph struct {
	pool pool.Pool
	held *held
}

func (p *Pool) newGraph() (*graph, error) {
	held := &held{under: p.source, free: map[uint64][]uintptr{}}
	made, err := p.fresh(held)
	return &graph{made, held}, err
}

// Empty reports whether the pool has no segments.
func (g *graph) Empty() bool { return g.pool.Stats().Reserved == 0 && g.held.empty() }

// trim gives back what the pool does not need.
func (g *graph) trim() error {
	_, err := g.pool.Trim()
	return errors.Join(err, g.held.release())
}
