// Package wrap holds pools around pools: a limit, a log and statistics, after the resource adaptors of
// RMM (the RAPIDS Memory Manager). They compose in any order. Each must see all of its pool's traffic,
// so a pool that is wrapped is used through the wrapper only.
//
// None holds its lock while the pool makes a block, for that may wait for another thread to free one. A
// free holds it, so that the block is off the records before it can be made again.
package wrap

import (
	"fmt"
	"sync"

	"tms/internal/readable"
	"tms/vmm/pool"
)

// Limit is a pool whose live bytes, as asked for, stay within a bound. It counts what was asked for, as
// RMM's limiting_resource_adaptor does, so that what fits does not depend on the pool beneath.
type Limit struct {
	pool.Pool
	mu       sync.Mutex
	bound    uint64
	held     uint64
	sizes    map[uintptr]uint64
	failures uint64
}

// NewLimit makes an empty pool's limit of so many bytes.
func NewLimit(p pool.Pool, bytes uint64) *Limit {
	return &Limit{Pool: p, bound: bytes, sizes: map[uintptr]uint64{}}
}

// Malloc is pool.Pool.Malloc. Errors: also pool.ErrOutOfMemory when the size does not fit below the
// bound; the pool is then not asked.
func (l *Limit) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	if err := l.reserve(size); err != nil {
		return pool.Block{}, err
	}
	block, err := l.Pool.Malloc(size, stream)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.held -= size
	} else if block.Address != 0 {
		l.sizes[block.Address] = size
	}
	return block, err
}

func (l *Limit) reserve(size uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if size > l.bound-l.held {
		l.failures++
		return fmt.Errorf("%w: %s, with %s live of a limit of %s; free something or raise the limit",
			pool.ErrOutOfMemory, readable.Bytes(size), readable.Bytes(l.held), readable.Bytes(l.bound))
	}
	l.held += size
	return nil
}

// Free is pool.Pool.Free.
func (l *Limit) Free(address uintptr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Pool.Free(address); err != nil {
		return err
	}
	l.held -= l.sizes[address]
	delete(l.sizes, address)
	return nil
}

// Stats is the pool's, with the mallocs that the limit refused among the failures.
func (l *Limit) Stats() pool.Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	stats := l.Pool.Stats()
	stats.Failures += l.failures
	return stats
}

// Destroy is pool.Pool.Destroy.
func (l *Limit) Destroy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.Pool.Destroy()
	for _, size := range l.sizes {
		l.held -= size
	}
	l.sizes = map[uintptr]uint64{}
	return err
}
