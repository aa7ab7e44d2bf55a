package pool

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

// StreamRecorder is a Pool that holds back a freed block until the other streams that used it are done.
type StreamRecorder interface {
	// RecordStream notes that stream uses the live block at address; 0 is ignored.
	// Errors: ErrInvalidAddress.
	RecordStream(address uintptr, stream Stream) error
}
