package caching

import (
	"cmp"
	"slices"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
	"tms/vmm/pool/internal/ordered"
)

// blockPool holds the free blocks of the small or the large sizes, of one graph or of everything else.
type blockPool struct {
	lists  []*freeList // by stream; only of streams with segments
	recent *freeList   // one of them
	small  bool
	clock  uint64 // searches so far, while there is garbage collection
}

// freeList holds the free blocks of one stream in a pool.
type freeList struct {
	pool     *blockPool
	stream   pool.Stream
	number   uint32      // in Pool.lists
	segments int         // of the stream in the pool
	counters *counters   // of the small or the large pool
	others   *counters   // of the other of these
	free     ordered.Set // by size and address
}

type graphPool struct{ small, large blockPool }

func newGraphPool() (*graphPool, error) { return &graphPool{small: blockPool{small: true}}, nil }

func (g *graphPool) Empty() bool { return len(g.small.lists)+len(g.large.lists) == 0 }

// poolFor returns the pool that blocks of a size come from and go back to.
func (p *Pool) poolFor(size uint64, stream pool.Stream) *blockPool {
	small, large := &p.smallPool, &p.largePool
	if g, captured := p.Captured(stream); captured {
		small, large = &g.small, &g.large
	}
	if size <= smallSize {
		return small
	}
	return large
}

func (f *blockPool) search(stream pool.Stream) (int, bool) {
	return slices.BinarySearchFunc(f.lists, stream, func(s *freeList, stream pool.Stream) int {
		return cmp.Compare(s.stream, stream)
	})
}

// freeListOf returns a stream's free list, nil if it has no segments.
func (f *blockPool) freeListOf(stream pool.Stream) *freeList {
	if f.recent != nil && f.recent.stream == stream {
		return f.recent
	}
	at, found := f.search(stream)
	if !found {
		return nil
	}
	f.recent = f.lists[at]
	return f.recent
}

// open returns a stream's free list, a new one if it has none.
func (p *Pool) open(f *blockPool, stream pool.Stream) *freeList {
	s := f.freeListOf(stream)
	if s == nil {
		s = &freeList{pool: f, stream: stream, counters: &p.stats.large, others: &p.stats.small}
		if f.small {
			s.counters, s.others = s.others, s.counters
		}
		at, _ := f.search(stream)
		f.lists = slices.Insert(f.lists, at, s)
		number := slices.Index(p.lists, nil)
		if number < 0 {
			number = len(p.lists)
			p.lists = append(p.lists, nil)
		}
		s.number = uint32(number)
		p.lists[number] = s
	}
	return s
}

func (p *Pool) close(s *freeList) {
	p.lists[s.number] = nil
	f := s.pool
	at, _ := f.search(s.stream)
	f.lists = slices.Delete(f.lists, at, at+1)
	f.recent = nil
}

// whole returns the free blocks that are entire segments, by stream, size and address.
func (p *Pool) whole(f *blockPool) []handle {
	var list []handle
	for _, s := range f.lists {
		for e, found := s.free.Ceiling(0); found; e, found = s.free.Ceiling(e.Key + 1) {
			if h := handle(e.Value); p.at(h).Whole() {
				list = append(list, h)
			}
		}
	}
	return list
}

// block is a part of a segment: free, in a list; live; or held for the streams that used it, which the table counts as
// taken. With the table's fields it fills a cache line.
type block = chunks.Chunk[state]

type state struct {
	born    uint64 // the pool's clock when it became free
	list    uint32 // in Pool.lists
	pending bool   // it is held for streams
	_       [19]byte
}

type handle = chunks.Handle

const none = chunks.None

// at returns a block; the pointer is valid until the next block is made.
func (p *Pool) at(h handle) *block { return p.table.At(h) }

func (p *Pool) listOf(b *block) *freeList { return p.lists[b.Own.list] }

func (p *Pool) put(h handle, b *block) {
	l := p.listOf(b)
	b.Own.born = l.pool.clock
	l.free.Insert(b.Key(), uint32(h))
}

// take takes a free block off its list.
func (p *Pool) take(b *block) { p.listOf(b).free.Remove(b.Key()) }
