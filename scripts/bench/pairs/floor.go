package main

import (
	"math/bits"

	"tms/vmm/pool"
)

// floor decides nothing. It touches what any pool must that finds blocks by address, keeps the free ones
// in order and tells neighbours of each other: for a free the slot of the address in a table, the block,
// its two neighbours and a place in the order; for a malloc a place in the order, the block there, the
// neighbour behind it and a slot. These are nine cache lines where nothing foretells, so what a pair
// costs here is the machine's part of what it costs in a pool.
type floor struct {
	slots  []slot   // a power of two, at most half in use
	blocks []record // the live and, a quarter as many, the free
	order  []entry  // the free
	made   int      // blocks that have been live
	taken  uint32   // what the last free took out of the order
	last   uint64   // random number
}

type slot struct {
	address uintptr
	block   uint32
}

type entry struct {
	key   uint64
	block uint32
}

// record fills a cache line.
type record struct {
	address        uintptr
	size           uint64
	previous, next uint32
	_              [40]byte
}

// newFloor makes a floor for live blocks.
func newFloor(live int) *floor {
	free := live/4 + 1
	f := &floor{
		slots:  make([]slot, 1<<bits.Len(uint(2*(live+free)))),
		blocks: make([]record, live+free),
		order:  make([]entry, free),
		last:   1,
	}
	for i := range f.order {
		f.order[i].block = uint32(live + i)
	}
	// Neighbours are strewn, as they come to be in a pool.
	ring := make([]uint32, len(f.blocks))
	for i := range ring {
		j := f.chance(i + 1)
		ring[i] = ring[j]
		ring[j] = uint32(i)
	}
	for i, block := range ring {
		f.blocks[block] = record{
			address:  uintptr(block + 1),
			previous: ring[(i+len(ring)-1)%len(ring)],
			next:     ring[(i+1)%len(ring)],
		}
	}
	return f
}

// chance returns a number below bound. (xorshift; Marsaglia, "Xorshift RNGs", 2003)
func (f *floor) chance(bound int) int {
	f.last ^= f.last << 13
	f.last ^= f.last >> 7
	f.last ^= f.last << 17
	number, _ := bits.Mul64(f.last, uint64(bound))
	return int(number)
}

// slot returns an address's own: to multiply by an odd number strews addresses without collisions.
func (f *floor) slot(address uintptr) *slot {
	return &f.slots[int(uint64(address)*0x9E3779B97F4A7C15)&(len(f.slots)-1)]
}

// Free is Pool.Free.
func (f *floor) Free(address uintptr) error {
	s := f.slot(address)
	h := s.block
	*s = slot{}
	b := &f.blocks[h]
	f.blocks[b.previous].next = h
	f.blocks[b.next].previous = h
	e := &f.order[f.chance(len(f.order))]
	f.taken = e.block
	*e = entry{b.size, h}
	return nil
}

// Malloc is Pool.Malloc.
func (f *floor) Malloc(size uint64, _ pool.Stream) (pool.Block, error) {
	h := uint32(f.made)
	if f.made < len(f.blocks)-len(f.order) {
		f.made++
	} else {
		e := &f.order[f.chance(len(f.order))]
		h = e.block
		*e = entry{size, f.taken}
	}
	b := &f.blocks[h]
	b.size = size
	f.blocks[b.next].previous = h
	*f.slot(b.address) = slot{b.address, h}
	return pool.Block{Address: b.address, Size: size}, nil
}
