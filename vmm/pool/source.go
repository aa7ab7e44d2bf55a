package pool

// Source gives segments. One pool at a time uses a source, under its lock.
type Source interface {
	// Allocate returns the address of a new segment of exactly size bytes, aligned to at least 512 bytes. Errors: one
	// that wraps ErrOutOfMemory if there is no room now.
	Allocate(size uint64) (uintptr, error)
	// Free gives back a segment that Allocate returned.
	Free(address uintptr, size uint64) error
}

// DeviceSource is a Source with all that a pool can ask of a device.
type DeviceSource interface {
	Source
	Memory
	Events
	Coalescer
}

// Memory is a Source that knows the device's memory, with which a pool can compare its own.
type Memory interface {
	// Memory returns the device's free and total memory in bytes. (cudaMemGetInfo)
	Memory() (free, total uint64, err error)
}

// Room has the addresses of one pool, whose segments lie side by side there.
type Room struct {
	Bytes uint64 // the most that the segments may have
}

// Coalescer is a Source in which one block can lie across two segments that touch; the segments are still given back
// one by one. (SubAllocator::SupportsCoalescing)
type Coalescer interface {
	// Reserve places later segments in a room, as far as its addresses last, and reports whether the source's segments
	// can coalesce at all.
	Reserve(room *Room) bool
	// Coalesces reports whether two segments that touch can.
	Coalesces(below, above uintptr) bool
}

// Event marks the work that a stream held when the event was recorded.
type Event uintptr

// Events is a Source that tells a pool when other streams have finished with a block. The pool makes these calls under
// its lock; they must not call the pool.
type Events interface {
	// Record makes an event behind the work that stream holds now. (cudaEventCreateWithFlags, cudaEventRecord)
	Record(stream Stream) (Event, error)
	// Query reports whether that work is done. (cudaEventQuery)
	Query(event Event) (bool, error)
	// Synchronize waits until that work is done. (cudaEventSynchronize)
	Synchronize(event Event) error
	// Destroy ends an event; the source may keep it for the next Record. (cudaEventDestroy)
	Destroy(event Event) error
}
