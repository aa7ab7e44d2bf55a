package small

import (
	"iter"
	"math/bits"
)

// Shelves have the slabs of one kind that may have room, by the logarithm of their longest run of free units as far as
// that is known: so an allocation finds a slab that has room for it, though many have less. T is what has a slab. The
// zero value is empty.
type Shelves[T any] struct{ lists [32][]*Place[T] }

// Place is where shelves have a slab. Its zero value is nowhere.
type Place[T any] struct {
	owner *T
	slab  *Slab
	in    *Shelves[T]
	shelf int
	index int // in the shelf
}

// tries bounds the search among slabs that may have too little room: an allocation that finds none in the last few
// looks at those that have more.
const tries = 4

// shelfOf returns the shelf of slabs whose longest free run has that size, or -1 for 0 bytes.
func shelfOf(bytes uint64) int { return bits.Len64(bytes/unit) - 1 }

// Put notes how much room a slab has, by its place.
func (s *Shelves[T]) Put(p *Place[T], owner *T, slab *Slab) {
	shelf := shelfOf(slab.Most())
	if p.in == s && p.shelf == shelf {
		return
	}
	if p.Take(); shelf >= 0 {
		*p = Place[T]{owner, slab, s, shelf, len(s.lists[shelf])}
		s.lists[shelf] = append(s.lists[shelf], p)
	}
}

// Take takes a slab out of its shelves: it is about to go, or is full.
func (p *Place[T]) Take() {
	if p.in == nil {
		return
	}
	list := p.in.lists[p.shelf]
	last := len(list) - 1
	list[p.index], list[last].index = list[last], p.index
	list[last] = nil
	p.in.lists[p.shelf] = list[:last]
	*p = Place[T]{}
}

// Allocate takes room for size bytes in a slab whose owner is usable, and reports whether it has found some.
func (s *Shelves[T]) Allocate(size uint64, usable func(*T) bool) (owner *T, offset uintptr, ok bool) {
	for shelf := max(0, shelfOf(size+unit-1)); shelf < len(s.lists); shelf++ {
		for n, i := 0, len(s.lists[shelf])-1; i >= 0 && n < tries; n, i = n+1, i-1 {
			p := s.lists[shelf][i]
			if !usable(p.owner) {
				continue
			}
			if offset, ok := p.slab.Allocate(size); ok {
				return p.owner, offset, true
			}
			s.Put(p, p.owner, p.slab) // it has less than was known
		}
	}
	return nil, 0, false
}

// Find returns a usable owner whose slab most likely has room for size bytes, or nil if there is none.
func (s *Shelves[T]) Find(size uint64, usable func(*T) bool) *T {
	for _, list := range s.lists[max(0, shelfOf(size+unit-1)):] {
		for i := len(list) - 1; i >= max(0, len(list)-tries); i-- {
			if p := list[i]; usable(p.owner) && p.slab.Most() >= size {
				return p.owner
			}
		}
	}
	return nil
}

// Owners lists the owners of all slabs here, and whether a slab is at the place that it is known to have.
func (s *Shelves[T]) Owners() iter.Seq2[*T, bool] {
	return func(yield func(*T, bool) bool) {
		for shelf, list := range s.lists {
			for index, p := range list {
				if !yield(p.owner, p.in == s && p.shelf == shelf && p.index == index) {
					return
				}
			}
		}
	}
}
