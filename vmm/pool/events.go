package pool

// Event marks the work that a stream held when the event was recorded.
type Event uintptr

// Events is a Source that shows a pool when other streams have finished with a block. The pool makes these calls under
// its lock; they must not call the pool.
type Events interface {
	// Record makes an event of the work that stream holds now. (cudaEventCreateWithFlags, cudaEventRecord)
	Record(stream Stream) (Event, error)
	// Query reports whether that work is done. (cudaEventQuery)
	Query(event Event) (bool, error)
	// Synchronize waits until it is. (cudaEventSynchronize)
	Synchronize(event Event) error
	// Destroy ends an event; it may be kept for the next Record. (cudaEventDestroy)
	Destroy(event Event) error
}

// StreamRecorder is a Pool that holds a freed block back until the other streams that used it are done.
type StreamRecorder interface {
	// RecordStream notes that stream uses the live block at address; 0 is ignored.
	// Errors: ErrInvalidAddress.
	RecordStream(address uintptr, stream Stream) error
}
