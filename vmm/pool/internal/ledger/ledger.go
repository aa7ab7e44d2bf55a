// Package ledger keeps the accounts of a pool: which blocks are live, which bytes are held from the
// source, and the counters of pool.Stats. It is not locked; the pool's own mutex covers it.
package ledger

import (
	"fmt"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/addresses"
)

// Block is what is known of a live block.
type Block struct {
	Requested uint64 // bytes asked for
	Size      uint64 // bytes set aside
	Owner     uint32 // what it was carved from, in the numbering of the pool
}

// Ledger counts for one pool. It stands before the pool's source as a Source itself.
type Ledger struct {
	source pool.Source
	live   addresses.Table[Block]
	stats  pool.Stats
}

// New starts the accounts of a pool of this kind.
func New(kind string, source pool.Source) *Ledger {
	return &Ledger{source: source, stats: pool.Stats{Kind: kind}}
}

// Allocate is the source's Allocate, counted.
func (l *Ledger) Allocate(size uint64) (uintptr, error) {
	address, err := l.source.Allocate(size)
	if err != nil {
		l.stats.SourceFailures++
		return 0, err
	}
	l.stats.SourceMallocs++
	l.stats.Segments++
	l.stats.Reserved += size
	l.stats.PeakReserved = max(l.stats.PeakReserved, l.stats.Reserved)
	return address, nil
}

// Free is the source's Free, counted.
func (l *Ledger) Free(address uintptr, size uint64) error {
	if err := l.source.Free(address, size); err != nil {
		l.stats.SourceFailures++
		return err
	}
	l.stats.SourceFrees++
	l.stats.Segments--
	l.stats.Reserved -= size
	return nil
}

// Enter makes a block live.
func (l *Ledger) Enter(address uintptr, b Block) pool.Block {
	l.live.Insert(address, b)
	s := &l.stats
	s.Mallocs++
	s.Blocks++
	s.Requested += b.Requested
	s.Live += b.Size
	s.PeakRequested = max(s.PeakRequested, s.Requested)
	s.PeakLive = max(s.PeakLive, s.Live)
	return pool.Block{Address: address, Size: b.Size}
}

// Find returns the live block that starts at address. Errors: pool.ErrInvalidAddress.
func (l *Ledger) Find(address uintptr) (Block, error) {
	b, found := l.live.Find(address)
	if !found {
		return Block{}, fmt.Errorf("%s pool: %w: %#x", l.stats.Kind, pool.ErrInvalidAddress, address)
	}
	return b, nil
}

// Remove ends a block that Find returned.
func (l *Ledger) Remove(address uintptr, b Block) {
	l.live.Remove(address)
	l.stats.Frees++
	l.stats.Blocks--
	l.stats.Requested -= b.Requested
	l.stats.Live -= b.Size
}

// Empty ends all live blocks, after each has been handed to drop.
func (l *Ledger) Empty(drop func(uintptr, Block)) {
	for address, b := range l.live.All() {
		drop(address, b)
	}
	l.live = addresses.Table[Block]{}
	l.stats.Frees += l.stats.Blocks
	l.stats.Blocks, l.stats.Requested, l.stats.Live = 0, 0, 0
}

// Refuse counts a malloc that failed and says of which pool it was.
func (l *Ledger) Refuse(size uint64, err error) error {
	l.stats.Failures++
	return fmt.Errorf("%s pool: %d bytes, with %d live and %d reserved: %w",
		l.stats.Kind, size, l.stats.Live, l.stats.Reserved, err)
}

// Stats returns the counters.
func (l *Ledger) Stats() pool.Stats { return l.stats }
