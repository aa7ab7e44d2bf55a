package caching

import (
	"fmt"

	"tms/internal/readable"
	"tms/vmm/pool"
)

// OutOfMemoryError says what the pool and the device held when memory ran out. It wraps pool.ErrOutOfMemory.
type OutOfMemoryError struct {
	text  string
	Cause error // of the last attempt
}

func (e *OutOfMemoryError) Error() string { return e.text }

// Unwrap makes errors.Is see pool.ErrOutOfMemory and the cause.
func (e *OutOfMemoryError) Unwrap() []error { return []error{pool.ErrOutOfMemory, e.Cause} }

// outOfMemory describes the state after the pool gave back all that it could, in PyTorch's words and order, and what
// the caller can do about it. tried is the size of the segment that found no room.
func (p *Pool) outOfMemory(tried uint64, cause error) error {
	known, unused, fraction := "unknown", "unknown", ""
	free, total, err := p.memory()
	if err != nil {
		total = 0 // the lack of memory matters more than this error
	}
	if total > 0 {
		known, unused = readable.Bytes(total), readable.Bytes(free)
	}
	if p.limited {
		fraction = readable.Bytes(p.allowed) + " allowed; "
	}
	allocated, reserved := uint64(p.all(allocatedBytes).Current), p.reserved()
	advice := "Free something"
	switch {
	case total > 0 && tried > total:
		advice = "Ask for less"
	case p.limited && reserved+tried > p.allowed:
		advice = "Free something, or raise the memory fraction"
	case reserved-allocated >= tried:
		advice = "More is reserved than allocated: max_split_size= may avoid fragmentation"
	}
	text := fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; "+
		"%s already allocated; %s free; %s%s reserved in total by the pool). %s",
		readable.Bytes(tried), p.device, known, readable.Bytes(allocated), unused, fraction,
		readable.Bytes(reserved), advice)
	return &OutOfMemoryError{text, cause}
}
