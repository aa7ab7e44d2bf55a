package caching

import (
	"fmt"

	"tms/internal/readable"
	"tms/vmm/pool"
)

// OutOfMemoryError has what the pool and the device held when memory ran out. It wraps pool.ErrOutOfMemory. Sizes are
// in bytes.
type OutOfMemoryError struct {
	Device    int
	Tried     uint64 // of the segment that found no room
	Total     uint64 // the device's memory; 0: unknown
	Allocated uint64 // live blocks
	Free      uint64 // on the device; only if Total is known
	Limited   bool   // a memory fraction is set,
	Allowed   uint64 // of this size
	Reserved  uint64 // held from the source
	Cause     error  // of the last attempt
}

// outOfMemory describes the state after the pool gave back all that it could.
func (p *Pool) outOfMemory(tried uint64, cause error) error {
	free, total, err := p.memory()
	if err != nil {
		free, total = 0, 0 // the lack of memory matters more than this error
	}
	return &OutOfMemoryError{
		Device: p.device, Tried: tried, Total: total, Free: free, Limited: p.limited, Allowed: p.allowed,
		Allocated: uint64(p.all(allocatedBytes).Current),
		Reserved:  p.reserved(),
		Cause:     cause,
	}
}

// Error gives PyTorch's facts in PyTorch's order, after the words that programs look for.
func (e *OutOfMemoryError) Error() string {
	total, free, allowed := "unknown", "unknown", ""
	if e.Total > 0 {
		total, free = readable.Bytes(e.Total), readable.Bytes(e.Free)
	}
	if e.Limited {
		allowed = readable.Bytes(e.Allowed) + " allowed; "
	}
	return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; "+
		"%s already allocated; %s free; %s%s reserved in total by the pool). %s",
		readable.Bytes(e.Tried), e.Device, total, readable.Bytes(e.Allocated), free, allowed,
		readable.Bytes(e.Reserved), e.advice())
}

// advice returns what the caller can do about it.
func (e *OutOfMemoryError) advice() string {
	switch {
	case e.Total > 0 && e.Tried > e.Total:
		return "Ask for less"
	case e.Limited && e.Reserved+e.Tried > e.Allowed:
		return "Free something, or raise the memory fraction"
	case e.Reserved-e.Allocated >= e.Tried:
		return "More is reserved than allocated: max_split_size= may avoid fragmentation"
	default:
		return "Free something"
	}
}

// Unwrap makes errors.Is see pool.ErrOutOfMemory and the cause.
func (e *OutOfMemoryError) Unwrap() []error { return []error{pool.ErrOutOfMemory, e.Cause} }
