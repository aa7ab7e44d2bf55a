package store

import (
	"fmt"
	"sync"

	"tms/internal/aid/readable"
	"tms/internal/machine/hostmemory"
)

// Budget is the host memory that one transition may take for all its devices, which work side by side. The system
// counts memory only once it is touched, and touching more than there is makes the kernel kill a process, most likely
// this one. So a budget promises in a ledger, which other processes see, what the transition is about to touch. A nil
// one looks each time at what there is.
type Budget struct {
	Ledger *hostmemory.Ledger // nil: there is none

	mu       sync.Mutex
	promises []*hostmemory.Promise
	left     uint64 // bytes that are promised, and not taken yet
}

// Shortage is the ErrHostMemory of a backup that needs more than there is, in bytes.
type Shortage struct{ Needed, Available uint64 }

func (s *Shortage) Error() string {
	needed, available := readable.Bytes(s.Needed), readable.Bytes(s.Available)
	return NoHostMemory(fmt.Errorf("%s are needed and %s are available", needed, available)).Error()
}

// Unwrap makes errors.Is(err, ErrHostMemory) work.
func (s *Shortage) Unwrap() error { return ErrHostMemory }

// NoHostMemory returns an ErrHostMemory that says what to do.
func NoHostMemory(cause error) error {
	return fmt.Errorf("%w: %w; free host memory, pause fewer tags at once, have contents wait on disk or in the "+
		"memory of another device, or make what may go without a backup", ErrHostMemory, cause)
}

// Check promises that the transition will take the bytes. Errors: *Shortage.
func (b *Budget) Check(bytes uint64) error {
	if b == nil {
		b = &Budget{}
		defer b.End()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes <= b.left {
		return nil
	}
	promise, available := b.Ledger.Promise(bytes - b.left)
	if promise == nil {
		return &Shortage{bytes, b.left + available}
	}
	b.promises, b.left = append(b.promises, promise), bytes
	return nil
}

// Take takes bytes, promised or not. Errors: *Shortage.
func (b *Budget) Take(bytes uint64) error {
	if err := b.Check(bytes); err != nil || b == nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= min(b.left, bytes) // devices that take beside one another have been checked together
	return nil
}

// Touched notes that from now on the system counts that number of the bytes.
func (b *Budget) Touched(bytes uint64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, promise := range b.promises {
		bytes -= promise.Touched(bytes)
	}
}

// End ends the promises.
func (b *Budget) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, promise := range b.promises {
		promise.End()
	}
	b.promises, b.left = nil, 0
}
