package caching

import (
	"cmp"
	"slices"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/ordered"
)

// blockPool holds the free blocks of the small or the large sizes, of a graph's or of all else.
type blockPool struct {
	shelves  []*shelf // by stream, of those that have segments
	recent   *shelf   // one of them
	small    bool
	graph    *graphPool // nil: not of a graph
	counters *counters
	clock    uint64 // searches so far, while there is garbage collection
}

// shelf holds the free blocks of one stream in a pool.
type shelf struct {
	pool     *blockPool
	stream   pool.Stream
	number   uint32      // in Pool.shelves
	segments int         // of the stream in the pool
	counters *counters   // the pool's
	free     ordered.Set // by size and address
}

// poolFor returns where a block of a size comes from and goes back to.
func (p *Pool) poolFor(size uint64, stream pool.Stream) *blockPool {
	small, large := &p.small, &p.large
	if len(p.captures) > 0 {
		if g := p.capturing(stream); g != nil {
			small, large = &g.small, &g.large
		}
	}
	if size <= smallSize {
		return small
	}
	return large
}

func (f *blockPool) search(stream pool.Stream) (int, bool) {
	return slices.BinarySearchFunc(f.shelves, stream, func(s *shelf, stream pool.Stream) int {
		return cmp.Compare(s.stream, stream)
	})
}

// of returns a stream's shelf, nil when it has no segments.
func (f *blockPool) of(stream pool.Stream) *shelf {
	if f.recent != nil && f.recent.stream == stream {
		return f.recent
	}
	at, found := f.search(stream)
	if !found {
		return nil
	}
	f.recent = f.shelves[at]
	return f.recent
}

// open returns a stream's shelf, a new one when it has none.
func (p *Pool) open(f *blockPool, stream pool.Stream) *shelf {
	s := f.of(stream)
	if s == nil {
		s = &shelf{pool: f, stream: stream, counters: f.counters}
		at, _ := f.search(stream)
		f.shelves = slices.Insert(f.shelves, at, s)
		number := slices.Index(p.shelves, nil)
		if number < 0 {
			number = len(p.shelves)
			p.shelves = append(p.shelves, nil)
		}
		s.number = uint32(number)
		p.shelves[number] = s
	}
	return s
}

func (p *Pool) close(s *shelf) {
	p.shelves[s.number] = nil
	f := s.pool
	at, _ := f.search(s.stream)
	f.shelves = slices.Delete(f.shelves, at, at+1)
	f.recent = nil
}

// whole returns the free blocks that are entire segments, by stream, size and address.
func (p *Pool) whole(f *blockPool) []handle {
	var list []handle
	for _, s := range f.shelves {
		for _, h := range s.free.From(0) {
			if !p.at(handle(h)).split() {
				list = append(list, handle(h))
			}
		}
	}
	return list
}
