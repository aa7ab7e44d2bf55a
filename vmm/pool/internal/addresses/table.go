// Package addresses is a hash table of addresses with linear probing (Knuth, The Art of Computer Programming, volume 3,
// 6.4, algorithms L and R). With a Go map, a malloc and its free would spend most of their time there.
package addresses

import (
	"iter"
	"math/bits"
)

// Table maps addresses other than 0 to values. The zero value is an empty table. It takes two to four times the memory
// of the most entries that it ever had.
type Table[V any] struct {
	slots []slot[V] // a power of two of them, at most half in use, so that probes are short
	count int
	shift int // of a hash, to its slot
}

type slot[V any] struct {
	address uintptr // 0: empty
	value   V
}

const leastSlots = 64

// home returns an address's slot: multiplicative hashing, because addresses share their low bits.
func (t *Table[V]) home(address uintptr) int {
	return int(uint64(address) * 0x9E3779B97F4A7C15 >> t.shift)
}

func (t *Table[V]) place(s slot[V]) {
	i := t.home(s.address)
	for t.slots[i].address != 0 {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = s
}

// Insert adds an address that is not in the table.
func (t *Table[V]) Insert(address uintptr, value V) {
	if 2*t.count >= len(t.slots) {
		full := t.slots
		t.slots = make([]slot[V], max(leastSlots, 2*len(full)))
		t.shift = 65 - bits.Len(uint(len(t.slots)))
		for _, s := range full {
			if s.address != 0 {
				t.place(s)
			}
		}
	}
	t.count++
	t.place(slot[V]{address, value})
}

// find returns the slot of an address; -1: it is not in the table.
func (t *Table[V]) find(address uintptr) int {
	if t.count == 0 || address == 0 {
		return -1
	}
	for i := t.home(address); t.slots[i].address != 0; i = (i + 1) & (len(t.slots) - 1) {
		if t.slots[i].address == address {
			return i
		}
	}
	return -1
}

func (t *Table[V]) Find(address uintptr) (value V, found bool) {
	if i := t.find(address); i >= 0 {
		return t.slots[i].value, true
	}
	return value, false
}

// Remove takes an address out and returns its value.
func (t *Table[V]) Remove(address uintptr) (value V, found bool) {
	hole := t.find(address)
	if hole < 0 {
		return value, false
	}
	value = t.slots[hole].value
	t.count--
	// An entry behind the hole moves into it, unless the hole is before the entry's home.
	last := len(t.slots) - 1
	for i := (hole + 1) & last; t.slots[i].address != 0; i = (i + 1) & last {
		if (i-t.home(t.slots[i].address))&last >= (i-hole)&last {
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = slot[V]{}
	return value, true
}

func (t *Table[V]) Len() int { return t.count }

// All yields the entries in no particular order. The table must not change meanwhile.
func (t *Table[V]) All() iter.Seq2[uintptr, V] {
	return func(yield func(uintptr, V) bool) {
		for _, s := range t.slots {
			if s.address != 0 && !yield(s.address, s.value) {
				return
			}
		}
	}
}
