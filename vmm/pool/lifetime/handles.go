package lifetime

import (
	"fmt"
	"sync"

	"tms/vmm/cuda"
	"tms/vmm/pool"
)

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
