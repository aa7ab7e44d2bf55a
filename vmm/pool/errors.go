package pool

import (
	"errors"
	"fmt"

	"tms/internal/readable"
	"tms/vmm/cuda"
)

// A pool's errors. All of them may be wrapped.
var (
	// ErrOutOfMemory: neither the pool nor its source has room. Free something, then call again.
	ErrOutOfMemory = cuda.Refuse(cuda.OutOfMemory, "out of memory")

	// ErrTooLarge: no state of this pool could serve the size.
	ErrTooLarge = cuda.Refuse(cuda.OutOfMemory, "larger than the pool can ever serve")

	// ErrInvalidAddress: the address is not the start of a live block of the pool (never was, was freed, or lies inside
	// one). Nothing has changed.
	ErrInvalidAddress = cuda.Refuse(cuda.InvalidValue, "not the start of a live block of this pool")

	// ErrDestroyed: the pool was destroyed, and its blocks with it.
	ErrDestroyed = cuda.Refuse(cuda.InvalidValue, "the pool was destroyed")

	// ErrOption: an option is unknown, or its value is not one the pool takes.
	ErrOption = cuda.Refuse(cuda.InvalidValue, "invalid pool option")
)

// Refusal says in one line why a pool made no block: the size, the pool that was asked for it, the cause, and the
// remedy.
type Refusal struct {
	Kind           string
	Size           uint64 // bytes asked for
	Live, Reserved uint64 // bytes of live blocks, and of the source's segments
	Cause          error
	Advice         string // for ErrOutOfMemory and ErrTooLarge; "": the cause has its own
}

func (r *Refusal) Error() string {
	text := fmt.Sprintf("%s pool: %s, with %s live and %s reserved: %v",
		r.Kind, readable.Bytes(r.Size), readable.Bytes(r.Live), readable.Bytes(r.Reserved), r.Cause)
	if r.Advice != "" && (errors.Is(r.Cause, ErrOutOfMemory) || errors.Is(r.Cause, ErrTooLarge)) {
		text += "; " + r.Advice
	}
	return text
}

// Unwrap makes errors.Is and errors.As see the cause.
func (r *Refusal) Unwrap() error { return r.Cause }
