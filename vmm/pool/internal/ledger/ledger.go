// Package ledger keeps the accounts of a pool: the bytes from the source, the live blocks, and the counters of
// pool.Stats. The pool's own mutex covers it.
package ledger

import (
	"tms/vmm/pool"
	"tms/vmm/pool/internal/addresses"
)

type Block[T any] struct {
	Requested uint64 // bytes asked for
	Size      uint64 // bytes set aside
	Owner     T      // what it was split from
}

// Ledger is the account of a pool that keeps nothing else of a live block.
type Ledger[T any] struct {
	Account
	live addresses.Table[Block[T]]
}

func New[T any](kind string, source pool.Source) *Ledger[T] {
	return &Ledger[T]{Account: NewAccount(kind, source)}
}

func (l *Ledger[T]) Enter(address uintptr, b Block[T]) pool.Block {
	l.live.Insert(address, b)
	l.CountMalloc(b.Requested, b.Size)
	return pool.Block{Address: address, Size: b.Size}
}

// Find returns the live block that starts at address. Errors: pool.ErrInvalidAddress.
func (l *Ledger[T]) Find(address uintptr) (Block[T], error) {
	b, found := l.live.Find(address)
	if !found {
		return b, l.Invalid(address)
	}
	return b, nil
}

// Remove ends the live block that starts at address and returns it. Errors: pool.ErrInvalidAddress.
func (l *Ledger[T]) Remove(address uintptr) (Block[T], error) {
	b, found := l.live.Remove(address)
	if !found {
		return b, l.Invalid(address)
	}
	l.CountFree(b.Requested, b.Size)
	return b, nil
}

// Empty ends all live blocks and hands each to drop.
func (l *Ledger[T]) Empty(drop func(uintptr, Block[T])) {
	for address, b := range l.live.All() {
		l.CountFree(b.Requested, b.Size)
		drop(address, b)
	}
	l.live = addresses.Table[Block[T]]{}
}
