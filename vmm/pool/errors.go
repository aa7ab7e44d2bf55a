package pool

import "errors"

// What a pool refuses. All of them may be wrapped.
var (
	// ErrOutOfMemory: neither the pool nor its source has room. Free something, then call again.
	ErrOutOfMemory = errors.New("out of memory")

	// ErrTooLarge: no state of this pool could serve the size.
	ErrTooLarge = errors.New("larger than the pool can ever serve")

	// ErrInvalidAddress: the address is not the start of a live block of the pool (never was, was
	// freed, or lies inside one). Nothing was changed.
	ErrInvalidAddress = errors.New("not the start of a live block of this pool")

	// ErrDestroyed: the pool was destroyed, and what it had handed out with it.
	ErrDestroyed = errors.New("the pool was destroyed")

	// ErrOption: an option is unknown, or its value is not one the pool takes.
	ErrOption = errors.New("invalid pool option")
)
