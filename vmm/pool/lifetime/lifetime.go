// Package lifetime ends a pool for good while other threads may be using it. A malloc that comes after the
// end would make the pool ask its source again, for memory that nobody could give back any more.
package lifetime

import (
	"sync/atomic"

	"tms/vmm/pool"
)

// Source is where the segments of such a pool come from. It keeps something of its own until it is closed.
type Source interface {
	pool.Source
	pool.Memory
	pool.Events
	pool.Coalescer
	Ordinal() int // of its device
	Close() error
}

// Pool is a pool of any kind, until it is destroyed.
type Pool struct {
	pool pool.Pool
	gate *gate
}

// gate is a source that gives nothing once it is shut. As a pool calls its source under its own lock, what
// another thread took before is there for the pool's Destroy to give back, and nothing is taken after.
type gate struct {
	Source
	shut atomic.Bool
}

// Allocate is pool.Source.Allocate. Errors: also pool.ErrDestroyed.
func (g *gate) Allocate(size uint64) (uintptr, error) {
	if g.shut.Load() {
		return 0, pool.ErrDestroyed
	}
	return g.Source.Allocate(size)
}

// New makes a pool over a source, which is closed with it. Errors: those of fresh; the source is then as it was.
func New(source Source, fresh func(pool.Source) (pool.Pool, error)) (*Pool, error) {
	g := &gate{Source: source}
	made, err := fresh(g)
	if err != nil {
		return nil, err
	}
	return &Pool{made, g}, nil
}

// Use calls f with the pool. Errors: those of f; pool.ErrDestroyed when the pool's end came first, or in between.
func (p *Pool) Use(f func(pool.Pool) error) error {
	if p.gate.shut.Load() {
		return pool.ErrDestroyed
	}
	err := f(p.pool)
	if err != nil && p.gate.shut.Load() {
		return pool.ErrDestroyed
	}
	return err
}

// Destroy gives everything back, live blocks too, and ends the pool; nothing of it is left at the source
// then. It waits for calls that are under way only as these wait for each other.
// Errors: the source's, after which the pool is there, empty, with what could not be given back;
// pool.ErrDestroyed when another thread was first.
func (p *Pool) Destroy() error {
	if p.gate.shut.Swap(true) {
		return pool.ErrDestroyed
	}
	err := p.pool.Destroy()
	if err == nil {
		err = p.gate.Close() // the pool is empty, so nobody calls the source
	}
	if err != nil {
		p.gate.shut.Store(false)
	}
	return err
}
