package caching

import (
	"cmp"
	"slices"

	"tms/vmm/pool"
)

// blockPool holds the free blocks of the small or the large sizes, of a graph's or of all else.
type blockPool struct {
	streams  []*bins // by stream, of those that have segments
	recent   *bins   // one of them
	small    bool
	graph    *graphPool // nil: not of a graph
	counters *counters
	clock    uint64 // searches so far, while there is garbage collection
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
	return slices.BinarySearchFunc(f.streams, stream, func(s *bins, stream pool.Stream) int {
		return cmp.Compare(s.stream, stream)
	})
}

// of returns a stream's bins, nil when it has no segments.
func (f *blockPool) of(stream pool.Stream) *bins {
	if f.recent != nil && f.recent.stream == stream {
		return f.recent
	}
	at, found := f.search(stream)
	if !found {
		return nil
	}
	f.recent = f.streams[at]
	return f.recent
}

// open returns a stream's bins, new ones when it has none.
func (f *blockPool) open(stream pool.Stream) *bins {
	s := f.of(stream)
	if s == nil {
		s = &bins{pool: f, stream: stream}
		at, _ := f.search(stream)
		f.streams = slices.Insert(f.streams, at, s)
	}
	return s
}

func (f *blockPool) close(s *bins) {
	at, _ := f.search(s.stream)
	f.streams = slices.Delete(f.streams, at, at+1)
	f.recent = nil
}

// whole returns the free blocks that are entire segments, by stream, size and address.
func (f *blockPool) whole() []*block {
	var list []*block
	for _, s := range f.streams {
		s.each(func(b *block) {
			if !b.split() {
				list = append(list, b)
			}
		})
	}
	return list
}
