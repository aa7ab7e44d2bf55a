// Package chunks serves pools that split and coalesce: its chunks tile a source's segments without gaps; each is free
// or taken as a whole, and linked to its neighbours. The pool's mutex covers it all.
package chunks

import (
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
	"tms/vmm/pool/internal/ordered"
)

// Handle names a chunk by its place in a slice. Handles are used again and are no pointers, so nothing is garbage.
type Handle uint32

// None is no chunk; it counts as taken, and its neighbours mean nothing.
const None Handle = 0

type Chunk[T any] struct {
	Own            T // the kind's own data
	Address        uintptr
	Size           uint64
	Requested      uint64 // bytes that the caller of a taken chunk asked for, or 0 for a free chunk
	Previous, Next Handle // neighbours in the segment, None at its ends; for a dropped one, the next dropped
}

// Taken reports whether the chunk is handed out, or not free yet.
func (c *Chunk[T]) Taken() bool { return c.Requested != 0 }

func (c *Chunk[T]) Whole() bool { return c.Previous == None && c.Next == None }

// Key orders free chunks by size, then by address.
func (c *Chunk[T]) Key() uint64 { return ordered.Fit(c.Size, c.Address) }

func (c *Chunk[T]) End() uintptr { return c.Address + uintptr(c.Size) }

// Table is a ledger whose blocks are the taken chunks, except for those that are not live or held any longer.
type Table[T any] struct {
	ledger.Ledger[Handle]
	chunks   []Chunk[T] // chunks[0] is None
	dropped  Handle     // first handle to use again
	segments []Segment  // by address
}

// Open makes an empty table.
func (t *Table[T]) Open(kind string, source pool.Source) {
	t.chunks = make([]Chunk[T], 1)
	t.chunks[None].Requested = 1
	t.Ledger = ledger.New(kind, source, func(h Handle) (requested, size uint64) {
		c := &t.chunks[h]
		return c.Requested, c.Size
	})
}

// At returns a chunk; the pointer is valid until the next Grow or Split.
func (t *Table[T]) At(h Handle) *Chunk[T] { return &t.chunks[h] }

// IsFree reports whether h is a chunk, and free.
func (t *Table[T]) IsFree(h Handle) bool { return !t.chunks[h].Taken() }

// fresh returns a handle whose chunk the caller fills in.
func (t *Table[T]) fresh() Handle {
	h := t.dropped
	if h == None {
		t.chunks = append(t.chunks, Chunk[T]{})
		return Handle(len(t.chunks) - 1)
	}
	t.dropped = t.chunks[h].Next
	return h
}

func (t *Table[T]) drop(h Handle) {
	t.chunks[h].Next = t.dropped
	t.dropped = h
}

// link makes two chunks neighbours; one of them may be None.
func (t *Table[T]) link(below, above Handle) {
	t.chunks[below].Next, t.chunks[above].Previous = above, below
}

// Split leaves the first size bytes to a chunk and returns the rest, a new free one with the same Own.
func (t *Table[T]) Split(h Handle, size uint64) Handle {
	rest := t.fresh()
	c, r := &t.chunks[h], &t.chunks[rest]
	r.Own, r.Address, r.Size, r.Requested = c.Own, c.Address+uintptr(size), c.Size-size, 0
	c.Size = size
	t.link(rest, c.Next)
	t.link(h, rest)
	return rest
}

// Join adds the chunk behind to a chunk, and ends that chunk's handle.
func (t *Table[T]) Join(h Handle) {
	c := &t.chunks[h]
	behind := c.Next
	c.Size += t.chunks[behind].Size
	t.link(h, t.chunks[behind].Next)
	t.drop(behind)
}

// Take makes a chunk live; requested is more than 0.
func (t *Table[T]) Take(h Handle, requested uint64) pool.Block {
	c := &t.chunks[h]
	c.Requested = requested
	return t.Enter(c.Address, h, requested, c.Size)
}
