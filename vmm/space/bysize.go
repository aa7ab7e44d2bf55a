package space

import (
	"iter"
	"slices"
)

// BySize lists things by their number of granules and the room that they lie in, and finds the smallest that is large
// enough. Its zero value is empty.
type BySize[T any] struct {
	lists    map[size][]*Slot[T]
	sizes    map[*Room][]uint32 // in their order, of what there is in a room, or in none
	granules uint64
}

type size struct {
	room     *Room
	granules uint32
}

// Slot is where BySize has a thing. Its zero value is nowhere.
type Slot[T any] struct {
	owner *T
	in    *BySize[T]
	size  size
	index int
}

// Put lists a thing by its slot.
func (b *BySize[T]) Put(s *Slot[T], owner *T, room *Room, granules uint32) {
	if b.lists == nil {
		b.lists, b.sizes = map[size][]*Slot[T]{}, map[*Room][]uint32{}
	}
	of := size{room, granules}
	list := b.lists[of]
	if len(list) == 0 {
		at, _ := slices.BinarySearch(b.sizes[room], granules)
		b.sizes[room] = slices.Insert(b.sizes[room], at, granules)
	}
	*s = Slot[T]{owner, b, of, len(list)}
	b.lists[of] = append(list, s)
	b.granules += uint64(granules)
}

// Take takes the thing out of its list.
func (s *Slot[T]) Take() {
	b, of := s.in, s.size
	list := b.lists[of]
	last := len(list) - 1
	list[s.index], list[last].index = list[last], s.index
	b.lists[of] = slices.Delete(list, last, last+1)
	b.granules -= uint64(of.granules)
	if *s = (Slot[T]{}); last > 0 {
		return
	}
	delete(b.lists, of)
	sizes := b.sizes[of.room]
	at, _ := slices.BinarySearch(sizes, of.granules)
	if sizes = slices.Delete(sizes, at, at+1); len(sizes) == 0 {
		delete(b.sizes, of.room)
	} else {
		b.sizes[of.room] = sizes
	}
}

// Lists reports whether the slot lists its thing with a room and a number of granules.
func (s *Slot[T]) Lists(room *Room, granules uint32) bool {
	return s.in != nil && s.size == size{room, granules}
}

// Granules returns how many granules all have together.
func (b *BySize[T]) Granules() uint64 { return b.granules }

// tries is at how many things Find looks: others may use all of them.
const tries = 64

// Find returns the smallest usable thing in a room that has at least as many granules, or nil.
func (b *BySize[T]) Find(granules uint32, room *Room, usable func(*T) bool) *T {
	sizes, looked := b.sizes[room], 0
	at, _ := slices.BinarySearch(sizes, granules)
	for _, n := range sizes[at:] {
		for _, s := range b.lists[size{room, n}] {
			if usable(s.owner) {
				return s.owner
			}
			if looked++; looked == tries {
				return nil
			}
		}
	}
	return nil
}

// All lists all things. They may come and go during the walk, which then may miss some, or have some twice.
func (b *BySize[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for of := range b.lists {
			for i := len(b.lists[of]) - 1; i >= 0; i = min(i, len(b.lists[of])) - 1 {
				if !yield(b.lists[of][i].owner) {
					return
				}
			}
		}
	}
}

// Check reports whether the lists are as they should be, and each thing where its slot says.
func (b *BySize[T]) Check() bool {
	count := 0
	for _, inRoom := range b.sizes {
		if !slices.IsSorted(inRoom) {
			return false
		}
		count += len(inRoom)
	}
	for of, list := range b.lists {
		for index, s := range list {
			if s.in != b || s.size != of || s.index != index {
				return false
			}
		}
	}
	return count == len(b.lists)
}
