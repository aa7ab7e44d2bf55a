package caching

import "math/bits"

// index finds live blocks by address: a hash table with linear probing, at most half full, without
// marks for what was deleted. A third of the time of Go's map for one malloc and one free.
type index struct {
	slots []slot
	shift int // of a hash, to its slot
	count int
}

type slot struct {
	address uintptr
	block   *block // nil: empty
}

const smallestIndex = 256

func newIndex(slots int) index {
	return index{slots: make([]slot, slots), shift: 64 - bits.TrailingZeros(uint(slots))}
}

func (x *index) home(address uintptr) int {
	return int(uint64(address) / minBlock * 0x9e3779b97f4a7c15 >> x.shift) // Knuth's multiplicative hashing
}

func (x *index) insert(b *block) {
	if x.count++; 2*x.count > len(x.slots) {
		old := x.slots
		*x = index{slots: make([]slot, 2*len(old)), shift: x.shift - 1, count: x.count}
		for _, s := range old {
			if s.block != nil {
				x.place(s)
			}
		}
	}
	x.place(slot{b.address, b})
}

func (x *index) place(s slot) {
	at := x.home(s.address)
	for x.slots[at].block != nil {
		at = (at + 1) & (len(x.slots) - 1)
	}
	x.slots[at] = s
}

// find returns the block at an address, nil when there is none, and its slot.
func (x *index) find(address uintptr) (*block, int) {
	at := x.home(address)
	for x.slots[at].block != nil && x.slots[at].address != address {
		at = (at + 1) & (len(x.slots) - 1)
	}
	return x.slots[at].block, at
}

// remove empties a slot, and moves those after it that probing would no longer reach.
func (x *index) remove(at int) {
	x.count--
	mask := len(x.slots) - 1
	hole := at
	for {
		at = (at + 1) & mask
		s := x.slots[at]
		if s.block == nil {
			break
		}
		if (at-x.home(s.address))&mask >= (at-hole)&mask {
			x.slots[hole] = s
			hole = at
		}
	}
	x.slots[hole] = slot{}
}
