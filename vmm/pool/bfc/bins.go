package bfc

import "math/bits"

// binCount bins: bin b has the free chunks from 256 << b bytes to twice that, the last all above. Only a
// dump tells of them, for the set of free chunks is in the same order and has bins of its own.
const binCount = 21

func binFor(size uint64) int {
	return min(bits.Len64(size/granularity)-1, binCount-1)
}

func binSize(bin int) uint64 { return granularity << bin }
