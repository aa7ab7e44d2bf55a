// Package chunks is the core of the pools that split and coalesce: chunks that tile the segments of a
// source without gaps, each free or live as a whole and linked to its neighbours. Which free chunk
// serves a request, and when neighbours are joined, is for the pool to say. Not locked; the pool's
// mutex covers it.
package chunks

import (
	"iter"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/addresses"
	"tms/vmm/pool/internal/ledger"
)

// Handle names a chunk, by its place in a slice: handles are used again, so that no operation makes
// garbage, and hold no pointers for the collector to follow.
type Handle uint32

// None is no chunk.
const None Handle = 0

// Chunk is a piece of a segment.
type Chunk struct {
	Address        uintptr
	Size           uint64
	Requested      uint64 // what a live chunk was asked for with; 0 of a free one
	Previous, Next Handle // neighbours in the segment, None at its ends; of a dropped one, the next dropped
}

// Live reports whether the chunk is handed out.
func (c *Chunk) Live() bool { return c.Requested != 0 }

// End is where the chunk ends.
func (c *Chunk) End() uintptr { return c.Address + uintptr(c.Size) }

// Table is all chunks of a pool.
type Table struct {
	ledger.Account
	chunks   []Chunk // chunks[0] is None
	dropped  Handle  // first handle to use again
	live     addresses.Table[Handle]
	segments []Segment // by address
}

// New returns an empty table for a pool of this kind.
func New(kind string, source pool.Source) *Table {
	return &Table{Account: ledger.NewAccount(kind, source), chunks: make([]Chunk, 1)}
}

// At returns a chunk; the pointer is good until the next Adopt or Split.
func (t *Table) At(h Handle) *Chunk { return &t.chunks[h] }

// IsFree reports whether h is a chunk, and free.
func (t *Table) IsFree(h Handle) bool { return h != None && !t.chunks[h].Live() }

func (t *Table) add(c Chunk) Handle {
	h := t.dropped
	if h == None {
		t.chunks = append(t.chunks, c)
		return Handle(len(t.chunks) - 1)
	}
	t.dropped = t.chunks[h].Next
	t.chunks[h] = c
	return h
}

func (t *Table) drop(h Handle) {
	t.chunks[h] = Chunk{Next: t.dropped}
	t.dropped = h
}

// Split leaves the first size bytes to a chunk and returns the rest, a new free one.
func (t *Table) Split(h Handle, size uint64) Handle {
	c := t.chunks[h]
	rest := t.add(Chunk{Address: c.Address + uintptr(size), Size: c.Size - size, Previous: h, Next: c.Next})
	t.chunks[h].Size = size
	t.chunks[h].Next = rest
	if c.Next != None {
		t.chunks[c.Next].Previous = rest
	}
	return rest
}

// Join adds to a free chunk the one behind it, free too, whose handle ends.
func (t *Table) Join(h Handle) {
	c := &t.chunks[h]
	behind := c.Next
	c.Size += t.chunks[behind].Size
	c.Next = t.chunks[behind].Next
	if c.Next != None {
		t.chunks[c.Next].Previous = h
	}
	t.drop(behind)
}

// Take makes a free chunk live; requested is more than 0.
func (t *Table) Take(h Handle, requested uint64) pool.Block {
	c := &t.chunks[h]
	c.Requested = requested
	t.live.Insert(c.Address, h)
	t.CountMalloc(requested, c.Size)
	return pool.Block{Address: c.Address, Size: c.Size}
}

// Give makes the live chunk that starts at address free. Errors: pool.ErrInvalidAddress.
func (t *Table) Give(address uintptr) (Handle, error) {
	h, found := t.live.Remove(address)
	if !found {
		return None, t.Invalid(address)
	}
	c := &t.chunks[h]
	t.CountFree(c.Requested, c.Size)
	c.Requested = 0
	return h, nil
}

// GiveAll makes every live chunk free and hands it to give, which may join it with free neighbours.
func (t *Table) GiveAll(give func(Handle)) {
	for h := range Handle(len(t.chunks)) {
		if t.chunks[h].Live() {
			_, _ = t.Give(t.chunks[h].Address)
			give(h)
		}
	}
}

// In yields the chunks of a segment by address. None may be dropped meanwhile but the one yielded last.
func (t *Table) In(s Segment) iter.Seq[Handle] {
	return func(yield func(Handle) bool) {
		for h := s.First; h != None; {
			next := t.chunks[h].Next
			if !yield(h) {
				return
			}
			h = next
		}
	}
}
