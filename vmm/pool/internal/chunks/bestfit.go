package chunks

import (
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ordered"
)

// BestFit is a Table that serves the smallest, then lowest, free chunk that fits and joins free neighbours at once.
type BestFit struct {
	Table[struct{}]
	free ordered.Set
}

func (b *BestFit) list(h Handle) { b.free.Insert(b.At(h).Key(), uint32(h)) }

func (b *BestFit) unlist(h Handle) { b.free.Remove(b.At(h).Key()) }

// Add makes a chunk free, which the ledger does not have, and joins it with its free neighbours.
func (b *BestFit) Add(h Handle) {
	b.At(h).Requested = 0
	if above := b.At(h).Next; b.IsFree(above) {
		b.unlist(above)
		b.Join(h)
	}
	if below := b.At(h).Previous; b.IsFree(below) {
		b.unlist(below)
		b.Join(below)
		h = below
	}
	b.list(h)
}

// Serve makes the first size bytes of a free chunk live. The rest of the chunk stays with them if it is less than size
// and less than padding. Serve reports whether there was a chunk.
func (b *BestFit) Serve(size, requested, padding uint64) (pool.Block, bool) {
	e, found := b.free.Ceiling(ordered.Fit(size, 0))
	if !found {
		return pool.Block{}, false
	}
	b.free.Take(e)
	h := Handle(e.Value)
	if rest := b.At(h).Size - size; rest >= size || rest > 0 && rest >= padding {
		b.list(b.Split(h, size))
	}
	return b.Take(h, requested), true
}

func (b *BestFit) Reuse(_ uintptr, h Handle) error {
	b.Add(h)
	return nil
}

func (b *BestFit) Largest() uint64 {
	_, h, _ := b.free.Last()
	return b.At(Handle(h)).Size
}

func (b *BestFit) FreeChunks() int { return b.free.Len() }

func (b *BestFit) Trim() error { return b.GiveBack(b.unlist, b.list) }
