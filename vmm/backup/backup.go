// Package backup keeps the contents of device memory while the memory itself is gone.
package backup

import (
	"errors"

	"tms/vmm/cuda"
)

// ErrHostMemory says that the operating system did not give, or the driver did not pin, the host
// memory a backup needs. Nothing was saved; free host memory and call again.
var ErrHostMemory = errors.New("not enough host memory for the backup")

// Span is a range of device memory, in bytes.
type Span struct {
	Address uintptr
	Size    uint64
}

// Contents is what a Store keeps of one span.
type Contents interface {
	// Bytes is the host (or disk, or peer) memory it takes.
	Bytes() uint64
	// Host is the address of a host copy of the whole span, 0 if there is none.
	Host() uintptr
	// Discard gives the memory back, in the background where that takes long. The Contents is not
	// used after that.
	Discard()
}

// Store keeps contents somewhere. Its calls are made one at a time for a device, with that device
// idle and its primary context given as context.
type Store interface {
	// Save copies every span into a Contents of its own. kept[i], unless nil, is the Contents that
	// an earlier Save of the same span returned: it is overwritten and returned again. After an
	// error nothing is saved, what was in kept is undefined but can be overwritten by another Save.
	Save(context cuda.Context, spans []Span, kept []Contents) ([]Contents, error)
	// Load begins copying contents back.
	Load(context cuda.Context) Loader
}

// Loader restores spans while others are still being mapped.
type Loader interface {
	// Add starts restoring a span whose device memory is mapped; it may return before it is done.
	Add(span Span, contents Contents)
	// Wait ends the load and returns the first error. Contents stay valid.
	Wait() error
}
