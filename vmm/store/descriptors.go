package store

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Descriptors keeps descriptors where neither the program nor a child has them.
type Descriptors interface {
	Keep(descriptor int) (number uint64, err error) // of a copy; never 0. After an error, drop the number
	Copy(number uint64) (descriptor int, err error) // for the caller
	Close(descriptor int)                           // of Copy
	Drop(number uint64) error                       // if there is one of that number
}

// OwnTable is Descriptors in the table of the process, for one that closes no descriptors that it has not opened. Its
// zero value is empty.
type OwnTable struct {
	mu   sync.Mutex
	kept map[uint64]int
	last uint64
}

// Keep keeps a copy of a descriptor. (fcntl)
func (t *OwnTable) Keep(descriptor int) (number uint64, err error) {
	copied, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil {
		t.kept = map[uint64]int{}
	}
	t.last++
	t.kept[t.last] = copied
	return t.last, nil
}

// Copy returns a copy of a descriptor that is kept. (fcntl)
func (t *OwnTable) Copy(number uint64) (descriptor int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept, has := t.kept[number]
	if !has {
		return -1, fmt.Errorf("no descriptor has the number %d: %w", number, unix.EBADF)
	}
	return unix.FcntlInt(uintptr(kept), unix.F_DUPFD_CLOEXEC, 0)
}

// Close closes a copy. (close)
func (t *OwnTable) Close(descriptor int) { _ = unix.Close(descriptor) }

// Drop closes a descriptor that is kept. (close)
func (t *OwnTable) Drop(number uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept, has := t.kept[number]
	if !has {
		return nil
	}
	delete(t.kept, number)
	return unix.Close(kept)
}
