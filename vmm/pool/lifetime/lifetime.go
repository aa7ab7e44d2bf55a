// Package lifetime ends a pool for good while other threads may be using it. A malloc after the end would make the pool
// ask its source again, for memory that could never be given back.
package lifetime

import (
	"fmt"
	"sync"
	"sync/atomic"

	"tms/vmm/cuda"
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

// gate is a source that gives nothing once it is closed. A pool calls its source under its own lock, so its Destroy gives
// back all that other threads took before, and no thread takes anything afterwards.
type gate struct {
	Source
	closed atomic.Bool
}

// Allocate is pool.Source.Allocate. Errors: also pool.ErrDestroyed.
func (g *gate) Allocate(size uint64) (uintptr, error) {
	if g.closed.Load() {
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

// Use calls f with the pool. Errors: those of f; pool.ErrDestroyed if the pool ended before or during the call.
func (p *Pool) Use(f func(pool.Pool) error) error {
	if p.gate.closed.Load() {
		return pool.ErrDestroyed
	}
	err := f(p.pool)
	if err != nil && p.gate.closed.Load() {
		return pool.ErrDestroyed
	}
	return err
}

// Destroy gives everything back to the source, live blocks too, and ends the pool. It waits for other calls only as
// those wait for each other. Errors: the source's, after which the pool is empty and keeps what the source refused;
// pool.ErrDestroyed if another thread was first.
func (p *Pool) Destroy() error {
	if p.gate.closed.Swap(true) {
		return pool.ErrDestroyed
	}
	err := p.pool.Destroy()
	if err == nil {
		err = p.gate.Close() // the pool is empty, so no thread calls the source
	}
	if err != nil {
		p.gate.closed.Store(false)
	}
	return err
}

var ErrNoPool = cuda.Refuse(cuda.InvalidValue, "not the handle of a pool; create one first")

// Handles maps numbers that C can hold to pools. No number is used twice, so the number of a destroyed pool differs
// from one that never named a pool. The zero value is empty; it is safe for use by many threads.
type Handles struct {
	mu   sync.RWMutex
	last uintptr
	open map[uintptr]*Pool
}

// Add returns the handle of a pool, never 0.
func (h *Handles) Add(p *Pool) uintptr {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = map[uintptr]*Pool{}
	}
	h.last++
	h.open[h.last] = p
	return h.last
}

// Pool returns the pool of a handle. Errors: pool.ErrDestroyed after its Destroy; ErrNoPool.
func (h *Handles) Pool(handle uintptr) (*Pool, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	switch p := h.open[handle]; {
	case p != nil:
		return p, nil
	case handle == 0:
		return nil, fmt.Errorf("the pool is NULL, %w", ErrNoPool)
	case handle > h.last:
		return nil, fmt.Errorf("%#x is %w", handle, ErrNoPool)
	default:
		return nil, pool.ErrDestroyed
	}
}

// Destroy destroys the pool of a handle, which then names none. Errors: those of Pool and of Pool.Destroy.
func (h *Handles) Destroy(handle uintptr) error {
	p, err := h.Pool(handle)
	if err != nil {
		return err
	}
	if err := p.Destroy(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, handle)
	return nil
}
