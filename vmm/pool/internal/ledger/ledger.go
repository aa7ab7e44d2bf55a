// Package ledger keeps a pool's accounts: bytes from the source, live blocks, counters. The pool's mutex covers it.
package ledger

import (
	"sync"

	"tms/vmm/pool"
)

type Block[T any] struct {
	Requested uint64 // bytes asked for
	Size      uint64 // bytes set aside
	Owner     T      // what it was split from
}

// Ledger is the account of a pool that keeps nothing else of a live block.
type Ledger[T any] struct {
	Account
	live map[uintptr]Block[T]
}

func New[T any](kind string, source pool.Source) *Ledger[T] {
	return &Ledger[T]{NewAccount(kind, source), map[uintptr]Block[T]{}}
}

func (l *Ledger[T]) Enter(address uintptr, b Block[T]) pool.Block {
	l.live[address] = b
	l.CountMalloc(b.Requested, b.Size)
	return pool.Block{Address: address, Size: b.Size}
}

// Find returns the live block that starts at address. Errors: pool.ErrInvalidAddress.
func (l *Ledger[T]) Find(address uintptr) (Block[T], error) {
	b, found := l.live[address]
	if !found {
		return b, l.Invalid(address)
	}
	return b, nil
}

// Remove ends the live block that starts at address and returns it. Errors: pool.ErrInvalidAddress.
func (l *Ledger[T]) Remove(address uintptr) (Block[T], error) {
	b, err := l.Find(address)
	if err != nil {
		return b, err
	}
	delete(l.live, address)
	l.CountFree(b.Requested, b.Size)
	return b, nil
}

// Blocks lists the live blocks, in no order.
func (l *Ledger[T]) Blocks() []pool.SegmentBlock {
	list := make([]pool.SegmentBlock, 0, len(l.live))
	for address, b := range l.live {
		list = append(list, pool.SegmentBlock{Address: address, Size: b.Size, Requested: b.Requested,
			State: pool.Allocated})
	}
	return list
}

// Empty ends all live blocks and hands each to drop.
func (l *Ledger[T]) Empty(drop func(uintptr, Block[T])) {
	for address, b := range l.live {
		l.CountFree(b.Requested, b.Size)
		drop(address, b)
	}
	clear(l.live)
}

// Base has the lock, and those calls of pool.Pool in which kinds differ only by a hook. Every kind embeds it.
type Base struct {
	sync.Mutex
	books Books
	hooks Hooks
}

// Books are a Ledger, or a Table of package chunks.
type Books interface {
	Stats() pool.Stats
	ResetPeakStats()
	Segments() []pool.Segment
	Blocks() []pool.SegmentBlock // in use, in no order
}

// Hooks are a kind's part of these calls, under the lock.
type Hooks struct {
	Malloc func(size uint64, stream pool.Stream) (pool.Block, error) // the size is not 0
	Free   func(address uintptr) error                               // nor is the address
	Trim   func() (uint64, error)                                    // gives idle segments back
	End    func()                                                    // before a last Trim: ends all live blocks
	Detail func() any                                                // Stats.Detail; nil without one
}

func (b *Base) Hook(books Books, hooks Hooks) { b.books, b.hooks = books, hooks }

func (b *Base) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	if size == 0 {
		return pool.Block{}, nil
	}
	b.Lock()
	defer b.Unlock()
	return b.hooks.Malloc(size, stream)
}

func (b *Base) Free(address uintptr) error {
	if address == 0 {
		return nil
	}
	b.Lock()
	defer b.Unlock()
	return b.hooks.Free(address)
}

func (b *Base) Trim() (uint64, error) {
	b.Lock()
	defer b.Unlock()
	return b.hooks.Trim()
}

func (b *Base) Stats() pool.Stats {
	b.Lock()
	defer b.Unlock()
	stats := b.books.Stats()
	if b.hooks.Detail != nil {
		stats.Detail = b.hooks.Detail()
	}
	return stats
}

func (b *Base) ResetPeakStats() {
	b.Lock()
	defer b.Unlock()
	b.books.ResetPeakStats()
}

// Snapshot is pool.Pool.Snapshot, for kinds that ignore streams.
func (b *Base) Snapshot() []pool.Segment {
	b.Lock()
	defer b.Unlock()
	return pool.Fill(b.books.Segments(), b.books.Blocks())
}

// Destroy is pool.Pool.Destroy. The next Trim or Destroy tries again what the source refuses.
func (b *Base) Destroy() error {
	b.Lock()
	defer b.Unlock()
	b.hooks.End()
	_, err := b.hooks.Trim()
	return err
}
