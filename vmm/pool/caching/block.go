package caching

import (
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
)

// block is a part of a segment: free, in a list; live; or freed and waiting for streams that used it, which the table
// counts as taken. With the table's fields it fills a cache line.
type block = chunks.Chunk[state]

type state struct {
	born    uint64 // the pool's clock when it became free
	list    uint32 // in Pool.lists
	pending bool   // it waits
	_       [19]byte
}

type handle = chunks.Handle

const none = chunks.None

// key returns a free block's key in its list.
func key(b *block) uint64 { return ordered.Fit(b.Size, b.Address) }

// at returns a block; the pointer is valid until the next block is made.
func (p *Pool) at(h handle) *block { return p.table.At(h) }

func (p *Pool) listOf(b *block) *freeList { return p.lists[b.Own.list] }

// put makes a block free.
func (p *Pool) put(h handle, b *block) {
	l := p.listOf(b)
	b.Own.born = l.pool.clock
	l.free.Insert(key(b), uint32(h))
}

// take takes a free block off its list.
func (p *Pool) take(b *block) { p.listOf(b).free.Remove(key(b)) }
