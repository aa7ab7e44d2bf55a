package bfc

import "math/bits"

// Bin b has the free chunks from 256 << b bytes to twice that, the last bin all larger ones. Only a dump uses these
// bins; the set of free chunks has the same order and its own bins.
const binCount = 21

func binFor(size uint64) int {
	return min(bits.Len64(size/granularity)-1, binCount-1)
}

func binSize(bin int) uint64 { return granularity << bin }
