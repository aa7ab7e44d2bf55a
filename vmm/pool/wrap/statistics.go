package wrap

import (
	"errors"
	"sync"

	"tms/vmm/pool"
)

// ErrNoScope: Pop without a Push before it. Nothing was changed.
var ErrNoScope = errors.New("no scope of statistics to end; push one first")

// Counter counts one thing in a scope. Value and so Peak may lie below what is really live, and Value
// below 0, when the scope ends blocks that were made before it.
type Counter struct {
	Value int64 `json:"value"` // made less ended
	Peak  int64 `json:"peak"`  // the highest Value
	Total int64 `json:"total"` // made
}

// Counters are what a scope counts.
type Counters struct {
	Bytes       Counter `json:"bytes"` // as asked for
	Allocations Counter `json:"allocations"`
}

// Statistics is a pool that counts in nested scopes, as RMM's statistics_resource_adaptor does: what
// happens counts in the innermost one, and when that ends is added to the one around it.
type Statistics struct {
	pool.Pool
	mu     sync.Mutex
	scopes []Counters
	sizes  map[uintptr]uint64
}

// NewStatistics makes the statistics of an empty pool, with one scope that does not end.
func NewStatistics(p pool.Pool) *Statistics {
	return &Statistics{Pool: p, scopes: make([]Counters, 1), sizes: map[uintptr]uint64{}}
}

func (c *Counter) add(n int64) {
	c.Value += n
	c.Total += n
	c.Peak = max(c.Peak, c.Value)
}

// absorb adds a scope that began when c had its present value.
func (c *Counter) absorb(inner Counter) {
	c.Peak = max(c.Peak, c.Value+inner.Peak)
	c.Value += inner.Value
	c.Total += inner.Total
}

func (s *Statistics) innermost() *Counters { return &s.scopes[len(s.scopes)-1] }

// Counters returns those of the innermost scope.
func (s *Statistics) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.innermost()
}

// Push begins a scope within the innermost one, whose counters so far it returns.
func (s *Statistics) Push() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	outer := *s.innermost()
	s.scopes = append(s.scopes, Counters{})
	return outer
}

// Pop ends the innermost scope and returns its counters. Errors: ErrNoScope.
func (s *Statistics) Pop() (Counters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.scopes) == 1 {
		return Counters{}, ErrNoScope
	}
	inner := *s.innermost()
	s.scopes = s.scopes[:len(s.scopes)-1]
	outer := s.innermost()
	outer.Bytes.absorb(inner.Bytes)
	outer.Allocations.absorb(inner.Allocations)
	return inner, nil
}

// Malloc is pool.Pool.Malloc.
func (s *Statistics) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	block, err := s.Pool.Malloc(size, stream)
	if err != nil || block.Address == 0 {
		return block, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sizes[block.Address] = size
	c := s.innermost()
	c.Bytes.add(int64(size))
	c.Allocations.add(1)
	return block, nil
}

// Free is pool.Pool.Free.
func (s *Statistics) Free(address uintptr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Pool.Free(address); err != nil || address == 0 {
		return err
	}
	c := s.innermost()
	c.Bytes.Value -= int64(s.sizes[address])
	c.Allocations.Value--
	delete(s.sizes, address)
	return nil
}

// Destroy is pool.Pool.Destroy; it ends all live blocks.
func (s *Statistics) Destroy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.Pool.Destroy()
	c := s.innermost()
	for _, size := range s.sizes {
		c.Bytes.Value -= int64(size)
	}
	c.Allocations.Value -= int64(len(s.sizes))
	s.sizes = map[uintptr]uint64{}
	return err
}
