package backup

import (
	"fmt"
	"sync"

	"tms/internal/hostmemory"
	"tms/internal/readable"
)

// Budget is the host memory that one transition may take for all its devices, which work side by side. The system
// counts memory only once it is touched, and touching more than there is makes the kernel kill a process, most likely
// this one. The zero value reads what the machine and the control group have at its first use; a nil one reads it each
// time.
type Budget struct {
	mu    sync.Mutex
	asked bool
	left  uint64 // bytes
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

// Check fails where less than so many bytes are left. Errors: *Shortage.
func (b *Budget) Check(bytes uint64) error { return b.take(bytes, 0) }

// Take is Check, and then takes the bytes. Errors: *Shortage.
func (b *Budget) Take(bytes uint64) error { return b.take(bytes, bytes) }

func (b *Budget) take(need, taken uint64) error {
	if b == nil {
		b = &Budget{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.asked {
		b.asked, b.left = true, min(hostmemory.Machine(), hostmemory.Group("self"))
	}
	if need > b.left {
		return &Shortage{need, b.left}
	}
	b.left -= taken
	return nil
}

// Give gives bytes back that were taken.
func (b *Budget) Give(bytes uint64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += bytes
}
