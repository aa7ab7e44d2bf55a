package multistream

import (
	"fmt"
	"slices"
	"sync"

	"tms/vmm/pool"
)

// Private is a private pool of graphs. Graphs contain addresses, so the pool's segments stay while a graph exists.
type Private interface{ Empty() bool } // it holds nothing from the source

// Graphs makes a pool a pool.GraphPools. During a capture the pool gives nothing back to the source and neither records
// nor queries events: CUDA forbids all three.
type Graphs[G Private] struct {
	lock     sync.Locker // the pool's, which the calls of pool.GraphPools take
	fresh    func() (G, error)
	all      []*graph[G]
	captures []*graph[G] // the oldest first
}

type graph[G Private] struct {
	id   pool.GraphPoolID
	own  G
	uses int // graphs; at 0 free memory may be given back

	filter func(pool.Stream) bool // of the streams that are being captured, if any are
}

// NewGraphs returns the Graphs of a pool with this lock. fresh makes a private pool.
func NewGraphs[G Private](lock sync.Locker, fresh func() (G, error)) Graphs[G] {
	return Graphs[G]{lock: lock, fresh: fresh}
}

func (g *Graphs[G]) Capturing() bool { return len(g.captures) > 0 }

// Captured returns the private pool that a stream allocates from.
func (g *Graphs[G]) Captured(stream pool.Stream) (own G, found bool) {
	for _, c := range g.captures {
		if c.filter == nil || c.filter(stream) {
			return c.own, true
		}
	}
	return own, false
}

// Private lists all private pools.
func (g *Graphs[G]) Private() (all []G) {
	for _, of := range g.all {
		all = append(all, of.own)
	}
	return all
}

// Dissolve hands the private pools without a graph to give, and forgets those that are then empty.
func (g *Graphs[G]) Dissolve(give func(G)) {
	g.all = slices.DeleteFunc(g.all, func(of *graph[G]) bool {
		if of.uses > 0 {
			return false
		}
		give(of.own)
		return of.own.Empty()
	})
}

func (g *Graphs[G]) Abandon() {
	g.captures = nil
	for _, of := range g.all {
		of.uses = 0
	}
}

func (g *Graphs[G]) find(id pool.GraphPoolID) *graph[G] {
	for _, of := range g.all {
		if of.id == id {
			return of
		}
	}
	return nil
}

func (g *Graphs[G]) BeginAllocateToPool(id pool.GraphPoolID, filter func(pool.Stream) bool) error {
	g.lock.Lock()
	defer g.lock.Unlock()
	of := g.find(id)
	switch {
	case of == nil:
		own, err := g.fresh()
		if err != nil {
			return err
		}
		of = &graph[G]{id: id, own: own}
		g.all = append(g.all, of)
	case slices.Contains(g.captures, of):
		return fmt.Errorf("%w: %v is being allocated to", pool.ErrGraphPool, id)
	case of.uses == 0:
		return fmt.Errorf("%w: %v was released and still holds memory", pool.ErrGraphPool, id)
	}
	of.uses++
	of.filter = filter
	g.captures = append(g.captures, of)
	return nil
}

func (g *Graphs[G]) EndAllocateToPool(id pool.GraphPoolID) error {
	g.lock.Lock()
	defer g.lock.Unlock()
	i := slices.Index(g.captures, g.find(id))
	if i < 0 {
		return fmt.Errorf("%w: %v is not being allocated to", pool.ErrGraphPool, id)
	}
	g.captures = slices.Delete(g.captures, i, i+1)
	return nil
}

// ReleasePool is pool.GraphPools.ReleasePool. The next Trim or shortage gives the memory back.
func (g *Graphs[G]) ReleasePool(id pool.GraphPoolID) error {
	g.lock.Lock()
	defer g.lock.Unlock()
	of := g.find(id)
	if of == nil || of.uses == 0 {
		return fmt.Errorf("%w: %v is unknown or released", pool.ErrGraphPool, id)
	}
	if of.uses == 1 && slices.Contains(g.captures, of) {
		return fmt.Errorf("%w: the last graph of %v is being captured", pool.ErrGraphPool, id)
	}
	if of.uses--; of.uses == 0 {
		g.Dissolve(func(G) {})
	}
	return nil
}
