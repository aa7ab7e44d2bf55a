package pool

import (
	"errors"
	"fmt"

	"tms/internal/aid/readable"
	"tms/vmm/cuda"
)

// A pool's errors. All of them may be wrapped.
var (
	// ErrOutOfMemory: neither the pool nor its source has room. Free something, then call again.
	ErrOutOfMemory = cuda.Refuse(cuda.OutOfMemory, "out of memory")

	ErrTooLarge = cuda.Refuse(cuda.OutOfMemory, "larger than the pool can ever serve")

	// ErrInvalidAddress: the address is not the start of a live block of the pool (never was, was freed, or lies inside
	// one). Nothing has changed.
	ErrInvalidAddress = cuda.Refuse(cuda.InvalidValue, "not the start of a live block of this pool")

	ErrDestroyed = cuda.Refuse(cuda.InvalidValue, "the pool was destroyed")

	ErrOption = cuda.Refuse(cuda.InvalidValue, "invalid pool option")

	// ErrGraphPool: the graph pool does not exist, or is not in the state that the call needs.
	ErrGraphPool = cuda.Refuse(cuda.InvalidValue, "the graph pool is not in a state for this call")

	ErrCapturing = cuda.Refuse(cuda.StreamCaptureUnsupported,
		"a stream is being captured into a CUDA graph; end the capture, then call again")
)

// Refusal says in one line why a pool made no block: the size, the pool, the cause, and the remedy.
type Refusal struct {
	Kind           string
	Size           uint64 // bytes asked for
	Live, Reserved uint64 // bytes of live blocks, and of the source's segments
	Cause          error
	Advice         string // for ErrOutOfMemory and ErrTooLarge, or "" if the cause has its own
}

func (r *Refusal) Error() string {
	text := fmt.Sprintf("%s pool: %s, with %s live and %s reserved: %v",
		r.Kind, readable.Bytes(r.Size), readable.Bytes(r.Live), readable.Bytes(r.Reserved), r.Cause)
	if r.Advice != "" && (errors.Is(r.Cause, ErrOutOfMemory) || errors.Is(r.Cause, ErrTooLarge)) {
		text += "; " + r.Advice
	}
	return text
}

func (r *Refusal) Unwrap() error { return r.Cause }
