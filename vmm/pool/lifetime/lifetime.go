// Package lifetime ends a pool for good while other threads may be using it. A malloc after the end would make the pool
// ask its source again, for memory that nobody could give back.
package lifetime

import (
	"sync/atomic"

	"tms/vmm/pool"
)

// Source is a pool.Source with resources of its own until Close.
type Source interface {
	pool.DeviceSource
	Ordinal() int // of its device
	Close() error
}

// Pool is a pool of any kind, until it is destroyed.
type Pool struct {
	pool pool.Pool
	gate *gate
}

// gate is a source that gives nothing once it is shut. A pool calls its source under its own lock, so its Destroy gives
// back all that other threads took before, and no thread takes anything afterwards.
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

// New makes a pool over a source, and closes the source with it. Errors: those of fresh, which leave the source open.
func New(source Source, fresh func(pool.Source) (pool.Pool, error)) (*Pool, error) {
	g := &gate{Source: source}
	made, err := fresh(g)
	if err != nil {
		return nil, err
	}
	return &Pool{made, g}, nil
}

// Use calls f with the pool. Errors: those of f; pool.ErrDestroyed if the pool ended before or meanwhile.
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

// Destroy gives everything back to the source, live blocks too, and ends the pool. It waits for other calls only as
// those wait for each other. Errors: the source's, after which the pool is empty and keeps what the source refused;
// pool.ErrDestroyed if another thread was first.
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
