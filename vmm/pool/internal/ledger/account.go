package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"tms/vmm/pool"
)

// Account wraps a source and counts what a pool takes from it and hands out. It is a Source itself.
type Account struct {
	source   pool.Source
	stats    pool.Stats
	segments map[uintptr]uint64 // sizes, by address
}

func NewAccount(kind string, source pool.Source) Account {
	return Account{source: source, stats: pool.Stats{Kind: kind}, segments: map[uintptr]uint64{}}
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

func (a *Account) CountMalloc(requested, size uint64) {
	s := &a.stats
	s.Mallocs++
	s.Blocks++
	s.Requested += requested
	s.Live += size
	s.PeakRequested = max(s.PeakRequested, s.Requested)
	s.PeakLive = max(s.PeakLive, s.Live)
}

func (a *Account) CountFree(requested, size uint64) {
	s := &a.stats
	s.Frees++
	s.Blocks--
	s.Requested -= requested
	s.Live -= size
}

// CountSourceFailure counts a segment that the pool refused without asking the source.
func (a *Account) CountSourceFailure() { a.stats.SourceFailures++ }

func (a *Account) CountFailure() { a.stats.Failures++ }

// Refuse counts a malloc that failed and makes it a pool.Refusal, without the Refusal of a pool beneath. The advice is
// used where memory is short.
func (a *Account) Refuse(size uint64, err error, advice string) error {
	a.CountFailure()
	if beneath, ok := errors.AsType[*pool.Refusal](err); ok {
		err = beneath.Cause
	}
	return &pool.Refusal{Kind: a.stats.Kind, Size: size, Live: a.stats.Live, Reserved: a.stats.Reserved,
		Cause: err, Advice: advice}
}

// Invalid returns the error for an address where no live block starts.
func (a *Account) Invalid(address uintptr) error {
	return fmt.Errorf("%s pool: %#x: %w", a.stats.Kind, address, pool.ErrInvalidAddress)
}

func (a *Account) ResetPeakStats() {
	s := &a.stats
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
