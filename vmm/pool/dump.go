package pool

import (
	"errors"
	"fmt"
	"math/bits"

	"tms/internal/aid/readable"
)

// Explain adds to a Malloc's ErrOutOfMemory what the pool's memory is used for, and returns other errors as they are.
func Explain(p Pool, err error) error {
	if !errors.Is(err, ErrOutOfMemory) {
		return err
	}
	return fmt.Errorf("%w. %s", err, Dump(p.Snapshot()))
}

// Dump says how many blocks of each size the segments have, in use and free, and how large the largest is. A size is a
// power of two, and stands for those up to the next. (BFCAllocator::DumpMemoryLog)
func Dump(segments []Segment) string {
	text := fmt.Sprintf("The pool has segments: %d", len(segments))
	for _, of := range []struct {
		state BlockState
		words string
	}{{Allocated, "blocks in use"}, {PendingFree, "freed blocks that streams still use"}, {Inactive, "free blocks"}} {
		var count, sum [64]uint64 // by the logarithm of the size
		largest := uint64(0)
		for _, s := range segments {
			for _, b := range s.Blocks {
				if b.State == of.state {
					log := bits.Len64(b.Size) - 1
					count[log]++
					sum[log] += b.Size
					largest = max(largest, b.Size)
				}
			}
		}
		if largest == 0 {
			continue
		}
		text += fmt.Sprintf("; %s: the largest has %s", of.words, readable.Bytes(largest))
		for log, n := range count {
			if n > 0 {
				text += fmt.Sprintf(", %d from %s (%s)", n, readable.Bytes(1<<log), readable.Bytes(sum[log]))
			}
		}
	}
	return text
}
