package pool

import (
	"errors"
	"fmt"

	"tms/internal/readable"
	"tms/vmm/cuda"
)

// What a pool refuses. All of them may be wrapped.
var (
	// ErrOutOfMemory: neither the pool nor its source has room. Free something, then call again.
	ErrOutOfMemory = cuda.Refuse(cuda.OutOfMemory, "out of memory")

	// ErrTooLarge: no state of this pool could serve the size.
	ErrTooLarge = cuda.Refuse(cuda.OutOfMemory, "larger than the pool can ever serve")

	// ErrInvalidAddress: the address is not the start of a live block of the pool (never was, was
	// freed, or lies inside one). Nothing was changed.
	ErrInvalidAddress = cuda.Refuse(cuda.InvalidValue, "not the start of a live block of this pool")

	// ErrDestroyed: the pool was destroyed, and what it had handed out with it.
	ErrDestroyed = cuda.Refuse(cuda.InvalidValue, "the pool was destroyed")

	// ErrOption: an option is unknown, or its value is not one the pool takes.
	ErrOption = cuda.Refuse(cuda.InvalidValue, "invalid pool option")
)

// Refusal is why a pool made no block, in one line for people: what was asked of which pool, why it could
// not be, and what can be done about that.
type Refusal struct {
	Kind           string
	Size           uint64 // bytes asked for
	Live, Reserved uint64 // bytes that the pool has handed out, and holds from its source
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
