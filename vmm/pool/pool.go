// Package pool has what the sub-allocators share: their interface, the source that they split into allocations, and
// their errors. Each allocator is a package below this one; package kinds knows them all by name. Metadata lives in
// ordinary Go memory, so a pool works the same over a GPU, over pausable segments and over a range of bare numbers.
package pool

// Stream names a CUDA stream; 0 is the default stream. Kinds that do not order reuse by stream ignore it.
type Stream uintptr

// Block is an allocation from a pool.
type Block struct {
	Address uintptr
	Size    uint64 // bytes set aside for it, at least the requested size
}

// Pool splits the segments of a Source into allocations. Many threads may call all methods. An error leaves the pool as
// it was before the call.
type Pool interface {
	// Malloc returns a block of at least size bytes, usable in the order of stream. For a size of 0 it returns the zero
	// Block. Errors: ErrOutOfMemory, ErrTooLarge, or the source's own, wrapped.
	Malloc(size uint64, stream Stream) (Block, error)

	// Free takes back the block that starts at address; it ignores 0. Errors: ErrInvalidAddress if no live block of
	// this pool starts there.
	Free(address uintptr) error

	// Check returns an error if no live block of this pool starts at address. Errors: ErrInvalidAddress.
	Check(address uintptr) error

	// Hold ends the live block that starts at address, like Free, but its memory is for no other block before Release.
	// Errors: ErrInvalidAddress.
	Hold(address uintptr) error

	// Release makes the memory of a held block free. Errors: as Free; after the source's, the block is still held.
	Release(address uintptr) error

	// Restore makes a held block live again. Errors: ErrInvalidAddress.
	Restore(address uintptr) error

	// Trim gives every segment in which nothing is live back to the source, and returns their bytes. The error is the
	// source's; segments that it refused stay in the pool.
	Trim() (uint64, error)

	// Stats returns the counters and sizes so far.
	Stats() Stats

	// Snapshot lists the segments by address, with what every byte of them is used for. (torch.cuda.memory_snapshot)
	Snapshot() []Segment

	// ResetPeakStats sets the peaks to the current values. (torch.cuda.reset_peak_memory_stats)
	ResetPeakStats()

	// Destroy gives everything back to the source, live blocks too. The pool is then empty, and usable.
	Destroy() error
}

// Stats has what every pool counts. Sizes are in bytes.
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
	Mallocs        uint64 `json:"mallocs"`  // that succeeded, but for size 0
	Frees          uint64 `json:"frees"`    // that succeeded, but for address 0
	Failures       uint64 `json:"failures"` // mallocs that failed
	SourceMallocs  uint64 `json:"source_mallocs"`
	SourceFrees    uint64 `json:"source_frees"`
	SourceFailures uint64 `json:"source_failures"`

	// Detail is what only this kind counts. It marshals to a JSON object, or is nil.
	Detail any `json:"detail,omitempty"`
}

// StreamRecorder is a Pool that holds back a freed block until the other streams that used it are done.
type StreamRecorder interface {
	// RecordStream notes that stream uses the live block at address; it ignores 0. Errors: ErrInvalidAddress.
	RecordStream(address uintptr, stream Stream) error
}

// GraphPoolID names a private pool of graphs. (PyTorch's MempoolId_t)
type GraphPoolID [2]uint64

// GraphPools is a Pool with private pools for CUDA graphs. A captured graph contains addresses, so memory allocated
// during its capture must stay the graph's own until the graph is gone.
type GraphPools interface {
	// BeginAllocateToPool makes the streams that filter accepts (nil: all) allocate from the private pool id until
	// EndAllocateToPool, and counts one more graph that uses it. The pool calls filter under its lock; filter must not
	// call the pool. Errors: ErrGraphPool if streams allocate from id already, or it was released.
	BeginAllocateToPool(id GraphPoolID, filter func(Stream) bool) error

	// EndAllocateToPool ends that. Errors: ErrGraphPool if no stream allocates from id.
	EndAllocateToPool(id GraphPoolID) error

	// ReleasePool notes that one of the graphs is gone. After the last, the private pool's free memory can go back to
	// the source. Errors: ErrGraphPool if the pool is unknown or released, or the last graph is still being captured.
	ReleasePool(id GraphPoolID) error
}
