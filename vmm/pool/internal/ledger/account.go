package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"tms/vmm/pool"
)

// Account wraps a source and counts what a pool takes from it and hands out. It is a Source itself.
type Account struct {
	source   pool.Source
	stats    pool.Stats
	segments map[uintptr]uint64 // sizes, by address
	whole    *Whole             // that the pool is a part of, or nil
}

// Whole counts the blocks of several pools together.
type Whole struct {
	mu    sync.Mutex
	stats pool.Stats
}

// Part is a source of a pool that is a part of a whole.
type Part interface{ Whole() *Whole }

func NewAccount(kind string, source pool.Source) Account {
	a := Account{source: source, stats: pool.Stats{Kind: kind}, segments: map[uintptr]uint64{}}
	if part, ok := source.(Part); ok {
		a.whole = part.Whole()
	}
	return a
}

func (a *Account) Allocate(size uint64) (uintptr, error) {
	address, err := a.source.Allocate(size)
	if err != nil {
		a.stats.SourceFailures++
		return 0, err
	}
	a.stats.SourceMallocs++
	a.stats.Segments++
	a.segments[address] = size
	a.stats.Reserved += size
	a.stats.PeakReserved = max(a.stats.PeakReserved, a.stats.Reserved)
	return address, nil
}

func (a *Account) Free(address uintptr, size uint64) error {
	if err := a.source.Free(address, size); err != nil {
		a.stats.SourceFailures++
		return err
	}
	a.stats.SourceFrees++
	a.stats.Segments--
	delete(a.segments, address)
	a.stats.Reserved -= size
	return nil
}

// count changes the counters by a block of these sizes, where there is a whole.
func (w *Whole) count(change func(s *pool.Stats, requested, size uint64), requested, size uint64) {
	if w != nil {
		w.change(change, requested, size)
	}
}

func (w *Whole) change(change func(s *pool.Stats, requested, size uint64), requested, size uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.stats, requested, size)
}

func malloc(s *pool.Stats, requested, size uint64) {
	s.Mallocs++
	s.Blocks++
	s.Requested += requested
	s.Live += size
	s.PeakRequested = max(s.PeakRequested, s.Requested)
	s.PeakLive = max(s.PeakLive, s.Live)
}

func free(s *pool.Stats, requested, size uint64) {
	s.Frees++
	s.Blocks--
	s.Requested -= requested
	s.Live -= size
}

// restore takes back a free.
func restore(s *pool.Stats, requested, size uint64) {
	malloc(s, requested, size)
	s.Mallocs--
	s.Frees--
}

// CountSourceFailure counts a segment that the pool refused without asking the source.
func (a *Account) CountSourceFailure() { a.stats.SourceFailures++ }

// refusal makes the error of a malloc a pool.Refusal, without the Refusal of a pool beneath.
func (a *Account) refusal(size uint64, err error, advice string) error {
	if beneath, ok := errors.AsType[*pool.Refusal](err); ok {
		err = beneath.Cause
	}
	return &pool.Refusal{Kind: a.stats.Kind, Size: size, Live: a.stats.Live, Reserved: a.stats.Reserved,
		Cause: err, Advice: advice}
}

// invalid returns the error for an address where no live block starts.
func (a *Account) invalid(address uintptr) error {
	return fmt.Errorf("%s pool: %#x: %w", a.stats.Kind, address, pool.ErrInvalidAddress)
}

func (a *Account) ResetPeakStats() { resetPeaks(&a.stats) }

func resetPeaks(s *pool.Stats) {
	s.PeakRequested, s.PeakLive, s.PeakReserved = s.Requested, s.Live, s.Reserved
}

func (a *Account) Stats() pool.Stats { return a.stats }

// Segments lists the segments by address, without blocks.
func (a *Account) Segments() []pool.Segment {
	list := make([]pool.Segment, 0, len(a.segments))
	for _, address := range slices.Sorted(maps.Keys(a.segments)) {
		list = append(list, pool.Segment{Address: address, Size: a.segments[address], Type: "large"})
	}
	return list
}

// Blocks returns the counters of blocks.
func (w *Whole) Blocks() pool.Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

func (w *Whole) ResetPeakStats() {
	w.mu.Lock()
	defer w.mu.Unlock()
	resetPeaks(&w.stats)
}
