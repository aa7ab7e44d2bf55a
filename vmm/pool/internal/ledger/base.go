package ledger

import (
	"errors"
	"maps"
	"sync"

	"tms/vmm/pool"
)

// Base has the lock and the ledger of a pool, and the calls of pool.Pool. Every kind embeds it.
type Base[E any] struct {
	sync.Mutex
	Ledger    *Ledger[E]
	placement Placement[E]
	left      map[uintptr]E // blocks that Destroy has ended, and of which the source refused the room
}

// Placement is a kind's part of these calls, under the lock.
type Placement[E any] struct {
	// Place finds room for a block, of a size that is not 0, and enters the block in the ledger.
	Place func(size uint64, stream pool.Stream) (pool.Block, error)
	// Advice says what helps if there is no room for a size. With it, the error of Place becomes a pool.Refusal.
	Advice func(size uint64) string
	// Reuse makes room of a block that the ledger no longer has. After an error the block is as it was before.
	Reuse func(address uintptr, e E) error
	// End is Reuse in Destroy. It may be nil, and then Reuse is tried again where the source refuses the room.
	End func(address uintptr, e E)
	// Trim gives idle segments back, and leaves those that the source refuses.
	Trim func() error
	// Detail is Stats.Detail, or nil.
	Detail func() any
}

func (b *Base[E]) Open(ledger *Ledger[E], placement Placement[E]) {
	b.Ledger, b.placement = ledger, placement
}

func (b *Base[E]) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	if size == 0 {
		return pool.Block{}, nil
	}
	b.Lock()
	defer b.Unlock()
	block, err := b.placement.Place(size, stream)
	if err != nil {
		b.Ledger.stats.Failures++
		if b.placement.Advice != nil {
			err = b.Ledger.refusal(size, err, b.placement.Advice(size))
		}
	}
	return block, err
}

// Free is pool.Pool.Free. A block whose room the source refuses stays live, and the error is the source's.
func (b *Base[E]) Free(address uintptr) error {
	if address == 0 {
		return nil
	}
	b.Lock()
	defer b.Unlock()
	e, err := b.Ledger.End(address)
	if err != nil {
		return err
	}
	if err = b.placement.Reuse(address, e); err != nil {
		b.Ledger.revive(address, e)
	}
	return err
}

// locked makes a call under the lock.
func (b *Base[E]) locked(call func(uintptr) error, address uintptr) error {
	b.Lock()
	defer b.Unlock()
	return call(address)
}

func (b *Base[E]) Check(address uintptr) error   { return b.locked(b.Ledger.Check, address) }
func (b *Base[E]) Hold(address uintptr) error    { return b.locked(b.Ledger.Hold, address) }
func (b *Base[E]) Restore(address uintptr) error { return b.locked(b.Ledger.Restore, address) }

func (b *Base[E]) Release(address uintptr) error {
	b.Lock()
	defer b.Unlock()
	e, err := b.Ledger.Release(address)
	if err == nil {
		if err = b.placement.Reuse(address, e); err != nil {
			b.Ledger.Keep(address, e)
		}
	}
	return err
}

func (b *Base[E]) Trim() (uint64, error) {
	b.Lock()
	defer b.Unlock()
	return b.GiveBack()
}

// GiveBack is Trim for a caller that has the lock.
func (b *Base[E]) GiveBack() (freed uint64, err error) {
	before := b.Ledger.stats.Reserved
	maps.DeleteFunc(b.left, func(address uintptr, e E) bool {
		refused := b.placement.Reuse(address, e)
		err = errors.Join(err, refused)
		return refused == nil
	})
	err = errors.Join(err, b.placement.Trim())
	return before - b.Ledger.stats.Reserved, err
}

func (b *Base[E]) Stats() pool.Stats {
	b.Lock()
	defer b.Unlock()
	stats := b.Ledger.Stats()
	if b.placement.Detail != nil {
		stats.Detail = b.placement.Detail()
	}
	return stats
}

func (b *Base[E]) ResetPeakStats() {
	b.Lock()
	defer b.Unlock()
	b.Ledger.ResetPeakStats()
}

// Snapshot is pool.Pool.Snapshot, for kinds that ignore streams.
func (b *Base[E]) Snapshot() []pool.Segment {
	b.Lock()
	defer b.Unlock()
	return pool.Fill(b.Ledger.Segments(), b.Ledger.Blocks())
}

// Destroy is pool.Pool.Destroy. The next Trim or Destroy tries again what the source refuses.
func (b *Base[E]) Destroy() error {
	b.Lock()
	defer b.Unlock()
	if b.left == nil {
		b.left = map[uintptr]E{}
	}
	b.Ledger.Empty(func(address uintptr, e E) {
		if end := b.placement.End; end != nil {
			end(address, e)
		} else if b.placement.Reuse(address, e) != nil {
			b.left[address] = e
		}
	})
	_, err := b.GiveBack()
	return err
}
