package slab

import "math/bits"

// Sizes are rounded up to a class: the multiples of 256 bytes, cudaMalloc's alignment, up to 1 KiB, then four to every
// doubling, so less than a fifth of an object is lost.
const (
	granularity  = 256
	linear       = 4                    // classes that are plain multiples
	linearLimit  = linear * granularity // the largest of them
	leastObjects = 8                    // in a slab
	mostPage     = granularity << 32    // so that 32 bits number the objects of a slab
)

// class is a size of object and its slabs. A full slab is on neither list: only its objects lead to it.
type class struct {
	size    uint64   // of an object
	slab    uint64   // bytes
	objects uint64   // in a slab
	partial uint32   // first slab with some objects live, none if there is none
	empty   []uint32 // slabs with no object live; the last serves first
}

// classOf returns the number of the class of a size above 0.
func classOf(size uint64) int {
	if size <= linearLimit {
		return int((size - 1) / granularity)
	}
	doubling := bits.Len64(size - 1) // 2^(doubling-1) < size <= 2^doubling
	quarter := (size - 1) >> (doubling - 3) & 3
	return linear + (doubling-bits.Len64(linearLimit))*4 + int(quarter)
}

// classSize returns the size of a class's objects.
func classSize(number int) uint64 {
	if number < linear {
		return uint64(number+1) * granularity
	}
	number -= linear
	return uint64(number%4+5) << (number/4 + bits.Len64(granularity) - 1)
}

// classes makes the classes for up to bound bytes, in slabs of at least a page.
func classes(bound, page uint64) []class {
	list := make([]class, classOf(bound)+1)
	for i := range list {
		size := classSize(i)
		list[i] = class{size: size, slab: page, partial: none}
		for list[i].slab < leastObjects*size {
			list[i].slab *= 2
		}
		list[i].objects = list[i].slab / size
	}
	return list
}
