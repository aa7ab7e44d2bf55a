// Package ledger records what a pool holds and hands out. The nouns: an Account counts bytes, blocks and segments; a
// Ledger is an Account with a record of each block; a Whole counts the blocks of several pools together; a Base is what
// all kinds of pool do alike with their ledger, around the Placement in which they differ.
package ledger

import (
	"maps"
	"slices"

	"tms/vmm/pool"
)

// Ledger records each block of a pool once: as live, or as held after its end. Beside this record, a kind has only what
// it needs to find room. The pool's mutex covers the ledger. These hold between any two calls, with sums over blocks:
//
//	Blocks    = len(live) = Mallocs - Frees
//	Live      = sum of sizes of live             <= PeakLive
//	Requested = sum of requested sizes of live   <= Live, PeakRequested
//	Segments  = len(segments) = SourceMallocs - SourceFrees
//	Reserved  = sum of sizes of segments         <= PeakReserved
//	Live + sum of sizes of held                  <= Reserved
//	live and held have no address in common
type Ledger[E any] struct {
	Account
	live  map[uintptr]E // by address, with what the kind records of a block
	held  map[uintptr]E // ended, and not yet for the kind to use again
	sizes func(E) (requested, size uint64)
}

// New returns an empty ledger. sizes returns the bytes that were asked for a block, and those set aside for it.
func New[E any](kind string, source pool.Source, sizes func(E) (requested, size uint64)) Ledger[E] {
	return Ledger[E]{Account: NewAccount(kind, source), live: map[uintptr]E{}, held: map[uintptr]E{}, sizes: sizes}
}

// Block is the record of a kind that keeps nothing else of a block.
type Block struct {
	Requested uint64 // bytes asked for
	Size      uint64 // bytes set aside
	Owner     uint32 // the number of what it was cut from
}

func (b Block) sizes() (requested, size uint64) { return b.Requested, b.Size }

func NewOfBlocks(kind string, source pool.Source) *Ledger[Block] {
	return new(New(kind, source, Block.sizes))
}

// Enter makes a block live, of which e has these sizes.
func (l *Ledger[E]) Enter(address uintptr, e E, requested, size uint64) pool.Block {
	l.live[address] = e
	malloc(&l.stats, requested, size)
	l.whole.count(malloc, requested, size)
	return pool.Block{Address: address, Size: size}
}

// Find returns the live block that starts at address. Errors: pool.ErrInvalidAddress.
func (l *Ledger[E]) Find(address uintptr) (E, error) {
	e, found := l.live[address]
	if !found {
		return e, l.invalid(address)
	}
	return e, nil
}

// End ends the live block that starts at address, and returns it. Errors: pool.ErrInvalidAddress.
func (l *Ledger[E]) End(address uintptr) (E, error) {
	e, found := l.live[address]
	if !found {
		return e, l.invalid(address)
	}
	delete(l.live, address)
	requested, size := l.sizes(e)
	free(&l.stats, requested, size)
	l.whole.count(free, requested, size)
	return e, nil
}

// revive takes back that a block has ended.
func (l *Ledger[E]) revive(address uintptr, e E) {
	l.live[address] = e
	requested, size := l.sizes(e)
	restore(&l.stats, requested, size)
	l.whole.count(restore, requested, size)
}

func (l *Ledger[E]) Check(address uintptr) error {
	_, err := l.Find(address)
	return err
}

func (l *Ledger[E]) Hold(address uintptr) error {
	e, err := l.End(address)
	if err == nil {
		l.Keep(address, e)
	}
	return err
}

// Keep holds a block that has ended.
func (l *Ledger[E]) Keep(address uintptr, e E) { l.held[address] = e }

// Release forgets the held block that starts at address, and returns it. Errors: pool.ErrInvalidAddress.
func (l *Ledger[E]) Release(address uintptr) (E, error) {
	e, found := l.held[address]
	if !found {
		return e, l.invalid(address)
	}
	delete(l.held, address)
	return e, nil
}

func (l *Ledger[E]) Restore(address uintptr) error {
	e, err := l.Release(address)
	if err == nil {
		l.revive(address, e)
	}
	return err
}

// Blocks lists all blocks, in no order.
func (l *Ledger[E]) Blocks() []pool.SegmentBlock {
	list := make([]pool.SegmentBlock, 0, len(l.live)+len(l.held))
	add := func(blocks map[uintptr]E, state pool.BlockState) {
		for address, e := range blocks {
			requested, size := l.sizes(e)
			list = append(list, pool.SegmentBlock{Address: address, Size: size, Requested: requested, State: state})
		}
	}
	add(l.live, pool.Allocated)
	add(l.held, pool.PendingFree)
	return list
}

// Empty ends and releases all blocks, and hands each to drop, by address.
func (l *Ledger[E]) Empty(drop func(uintptr, E)) {
	for address := range l.live {
		_ = l.Hold(address) // it is live
	}
	blocks := l.held
	l.held = map[uintptr]E{}
	for _, address := range slices.Sorted(maps.Keys(blocks)) {
		drop(address, blocks[address])
	}
}
