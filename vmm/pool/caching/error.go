package caching

import (
	"fmt"

	"tms/vmm/pool"
)

// OutOfMemoryError tells what the pool and the device held when memory ran out. It wraps
// pool.ErrOutOfMemory. Sizes are in bytes.
type OutOfMemoryError struct {
	Device    int
	Tried     uint64 // the segment that could not be had
	Total     uint64 // the device's memory, 0 when unknown
	Allocated uint64 // live blocks
	Free      uint64 // on the device; only when Total is known
	Limited   bool   // a memory fraction is set,
	Allowed   uint64 // of this size
	Reserved  uint64 // held from the source
	Cause     error  // of the last attempt
}

// outOfMemory describes the state after all that could be given back was.
func (p *Pool) outOfMemory(tried uint64, cause error) error {
	free, total, err := p.memory()
	if err != nil {
		free, total = 0, 0 // the shortage matters more than not knowing that
	}
	return &OutOfMemoryError{
		Device: p.device, Tried: tried, Total: total, Free: free, Limited: p.limited, Allowed: p.allowed,
		Allocated: uint64(p.counters.all.allocatedBytes.Current),
		Reserved:  uint64(p.counters.all.reservedBytes.Current),
		Cause:     cause,
	}
}

// Error has PyTorch's facts in PyTorch's order, after the words that programs look for.
func (e *OutOfMemoryError) Error() string {
	total, free, allowed := "unknown", "unknown", ""
	if e.Total > 0 {
		total, free = readable(e.Total), readable(e.Free)
	}
	if e.Limited {
		allowed = readable(e.Allowed) + " allowed; "
	}
	return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU %d; %s total capacity; "+
		"%s already allocated; %s free; %s%s reserved in total by the pool). "+
		"Where reserved is much more than allocated, max_split_size may avoid fragmentation",
		readable(e.Tried), e.Device, total, readable(e.Allocated), free, allowed, readable(e.Reserved))
}

// Unwrap makes errors.Is see pool.ErrOutOfMemory and the cause.
func (e *OutOfMemoryError) Unwrap() []error { return []error{pool.ErrOutOfMemory, e.Cause} }

func readable(size uint64) string {
	switch {
	case size <= 1<<10:
		return fmt.Sprintf("%d bytes", size)
	case size <= 1<<20:
		return fmt.Sprintf("%.2f KiB", float64(size)/(1<<10))
	case size <= 1<<30:
		return fmt.Sprintf("%.2f MiB", float64(size)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(size)/(1<<30))
}
