package streams

import (
	"errors"
	"fmt"
	"sync"

	"tms/internal/readable"
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
)

// shared is the source of all pools beneath, which call it under their own locks.
type shared struct {
	mu      sync.Mutex
	under   pool.Source
	account ledger.Account
	limited bool
	allowed uint64
}

// Allocate is pool.Source.Allocate. Errors: also pool.ErrOutOfMemory beyond the memory fraction.
func (s *shared) Allocate(size uint64) (uintptr, error) { return s.allocate(size, nil) }

func (s *shared) allocate(size uint64, room *pool.Room) (uintptr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if under, ok := s.under.(pool.Coalescer); ok {
		under.Reserve(room)
	}
	if held := s.account.Stats().Reserved; s.limited && (size > s.allowed || held > s.allowed-size) {
		s.account.CountSourceFailure()
		return 0, fmt.Errorf("%w: a segment of %s, where the memory fraction allows %s and %s are held",
			pool.ErrOutOfMemory, readable.Bytes(size), readable.Bytes(s.allowed), readable.Bytes(held))
	}
	return s.account.Allocate(size)
}

// Free is pool.Source.Free.
func (s *shared) Free(address uintptr, size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Free(address, size)
}

func (s *shared) resetPeak() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account.ResetPeakStats()
}

// count fills in the source's counters.
func (s *shared) count(stats *pool.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.account.Stats()
	stats.Reserved, stats.PeakReserved, stats.Segments = own.Reserved, own.PeakReserved, own.Segments
	stats.SourceMallocs, stats.SourceFrees = own.SourceMallocs, own.SourceFrees
	stats.SourceFailures = own.SourceFailures
}

// Memory is pool.Memory.Memory; 0 if the source does not know.
func (s *shared) Memory() (free, total uint64, err error) {
	if under, ok := s.under.(pool.Memory); ok {
		return under.Memory()
	}
	return 0, 0, nil
}

// part is one pool's view of the source. The pool's segments lie in a room of their own.
type part struct {
	*shared
	room *pool.Room
}

// Allocate is pool.Source.Allocate.
func (p *part) Allocate(size uint64) (uintptr, error) { return p.allocate(size, p.room) }

// Reserve is pool.Coalescer.Reserve.
func (p *part) Reserve(room *pool.Room) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	under, ok := p.under.(pool.Coalescer)
	p.room = room
	return ok && under.Reserve(room)
}

// Coalesces is pool.Coalescer.Coalesces.
func (p *part) Coalesces(below, above uintptr) bool {
	under, ok := p.under.(pool.Coalescer)
	return ok && under.Coalesces(below, above)
}

func (s *shared) reserved() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Stats().Reserved
}

func (s *shared) limit(bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limited, s.allowed = true, bytes
}

// held is a private pool's source: it keeps the segments that the pool gives back, for later ones of the same size,
// until the graphs are gone.
type held struct {
	mu    sync.Mutex
	under *shared
	free  map[uint64][]uintptr
}

// Allocate is pool.Source.Allocate.
func (h *held) Allocate(size uint64) (uintptr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if kept := h.free[size]; len(kept) > 0 {
		h.free[size] = kept[:len(kept)-1]
		return kept[len(kept)-1], nil
	}
	return h.under.Allocate(size)
}

// Free is pool.Source.Free.
func (h *held) Free(address uintptr, size uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free[size] = append(h.free[size], address)
	return nil
}

// Memory is pool.Memory.Memory.
func (h *held) Memory() (free, total uint64, err error) { return h.under.Memory() }

// release gives back the kept segments. Those that the source refuses stay.
func (h *held) release() (failed error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for size, addresses := range h.free {
		kept := addresses[:0]
		for _, address := range addresses {
			if err := h.under.Free(address, size); err != nil {
				failed = errors.Join(failed, err)
				kept = append(kept, address)
			}
		}
		if h.free[size] = kept; len(kept) == 0 {
			delete(h.free, size)
		}
	}
	return failed
}

func (h *held) empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.free) == 0
}
