// Package pool holds what the sub-allocators have in common: the interface they satisfy, the source
// they split into allocations, and their errors. Each allocator is a package below this one;
// package kinds knows them all by name.
//
// Nothing here touches the memory that is managed: metadata live in ordinary Go memory, so a pool works
// the same over a GPU, over pausable segments and over a range of bare numbers.
package pool

// Stream names a CUDA stream; 0 is the default stream. Kinds that do not order reuse by stream ignore it.
type Stream uintptr

// Block is an allocation as a pool made it.
type Block struct {
	Address uintptr
	Size    uint64 // bytes set aside for it, at least what was asked for
}

// Pool splits the segments of a Source into allocations. All methods may be called by many threads.
// After any error the pool is as it was before the call.
type Pool interface {
	// Malloc returns a block of at least size bytes, usable in the order of stream. A size of 0 gets
	// the zero Block. Errors: ErrOutOfMemory, ErrTooLarge, or the source's own, wrapped.
	Malloc(size uint64, stream Stream) (Block, error)

	// Free takes back the block that starts at address; 0 is ignored.
	// Errors: ErrInvalidAddress when it is not the start of a live block of this pool.
	Free(address uintptr) error

	// Trim gives back to the source every segment in which nothing is live, and returns how many
	// bytes that was. The error is the source's; what it refused stays in the pool.
	Trim() (uint64, error)

	// Stats returns the counters and sizes so far.
	Stats() Stats

	// ResetPeakStats makes the peaks in the statistics what is there now. (torch.cuda.reset_peak_memory_stats)
	ResetPeakStats()

	// Destroy gives everything back to the source, live blocks too. The pool is then empty and usable.
	Destroy() error
}

// Source is where segments come from. A source is used by one pool at a time, under its lock.
type Source interface {
	// Allocate returns the address of a new segment of exactly size bytes, aligned to at least
	// 512 bytes. Errors: one that wraps ErrOutOfMemory when there is no room now.
	Allocate(size uint64) (uintptr, error)
	// Free gives back a segment that Allocate returned.
	Free(address uintptr, size uint64) error
}

// Stats is what every pool counts. Sizes are in bytes.
type Stats struct {
	Kind      string `json:"kind"`
	Requested uint64 `json:"requested_bytes"` // live, as asked for
	Live      uint64 `json:"live_bytes"`      // live, as set aside (the sizes of the blocks)
	Reserved  uint64 `json:"reserved_bytes"`  // held from the source

	PeakRequested uint64 `json:"peak_requested_bytes"`
	PeakLive      uint64 `json:"peak_live_bytes"`
	PeakReserved  uint64 `json:"peak_reserved_bytes"`

	Blocks         uint64 `json:"blocks"`   // live
	Segments       uint64 `json:"segments"` // held from the source
	Mallocs        uint64 `json:"mallocs"`  // that succeeded, zero sizes not counted
	Frees          uint64 `json:"frees"`    // that succeeded, of address 0 not counted
	Failures       uint64 `json:"failures"` // mallocs that failed
	SourceMallocs  uint64 `json:"source_mallocs"`
	SourceFrees    uint64 `json:"source_frees"`
	SourceFailures uint64 `json:"source_failures"`

	// Detail is what this kind counts beyond that; it marshals to a JSON object. nil: nothing.
	Detail any `json:"detail,omitempty"`
}
