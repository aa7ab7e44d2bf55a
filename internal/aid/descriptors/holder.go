// Package descriptors holds file descriptors, and passes them between processes (docs/design/descriptors.md).
//
// The nouns: a Holder has descriptors by number, and it alone closes them. Send and Receive pass a copy through a socket.
// A File is what a descriptor stands for. A spare is a number of the process's table that stays free for the library.
//
// Each descriptor that a Holder took over is held, leaving, being closed, or was closed, once:
//
//	put = held + leaving + closing + closed, and count = held + closing
//
// A descriptor changes hands by a copy. It is leaving until the taker is known to have the copy, and is closed then; or
// it stays. So what another process takes is not lost when that process is killed in between, and is not given twice.
package descriptors

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Holder has descriptors by number. Its zero value has none. Any thread may use it that has the table in which the
// descriptors are.
type Holder struct {
	// Room, unless nil, says why a descriptor cannot be held besides the count that is: it returns an error, or nil.
	Room func(count, descriptor int) error

	mu      sync.Mutex
	held    map[uint64]held
	leaving int // of held
	closing int // descriptors without a number that are not closed yet
}

// held is a descriptor, and the bytes of what it stands for.
type held struct {
	descriptor int
	bytes      uint64
	leaving    bool
}

// Number draws a number, which is never 0.
func Number() uint64 { return max(1, rand.Uint64()) }

// Put takes a descriptor over, and sets it to -1. The descriptor that had the number before is closed. Errors: Room's;
// unix.EBADF for -1.
func (h *Holder) Put(number, bytes uint64, descriptor *int) error {
	h.mu.Lock()
	if h.Room != nil {
		if err := h.Room(h.count(), *descriptor); err != nil {
			h.mu.Unlock()
			return err
		}
	}
	if *descriptor < 0 {
		h.mu.Unlock()
		return unix.EBADF
	}
	before, had := h.remove(number)
	if h.held == nil {
		h.held = map[uint64]held{}
	}
	h.held[number], *descriptor = held{*descriptor, bytes, false}, -1
	h.mu.Unlock()
	if had {
		_ = h.close(before)
	}
	return nil
}

// Keep puts a copy of a descriptor under a number that it draws. (fcntl)
func (h *Holder) Keep(descriptor int) (number uint64, err error) {
	copied, err := duplicate(descriptor)
	if err != nil {
		return 0, err
	}
	number = Number()
	if err = h.Put(number, 0, &copied); err != nil {
		_ = unix.Close(copied)
		return 0, err
	}
	return number, nil
}

// Use calls a short function with a descriptor, which it must not close. Errors: unix.EBADF, wrapped, for a number that
// the Holder does not have; those of the function.
func (h *Holder) Use(number uint64, use func(descriptor int) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, has := h.held[number]
	if !has {
		return fmt.Errorf("no descriptor has the number %d: %w", number, unix.EBADF)
	}
	return use(of.descriptor)
}

// Copy returns a copy of a descriptor, which the caller closes by Close. (fcntl)
func (h *Holder) Copy(number uint64) (descriptor int, err error) {
	descriptor = -1
	err = h.Use(number, func(of int) error {
		descriptor, err = duplicate(of)
		return err
	})
	return descriptor, err
}

// Close closes a copy.
func (h *Holder) Close(descriptor int) { _ = unix.Close(descriptor) }

// Drop closes the descriptor of a number, if there is one. It counts until it is closed, which may take seconds where
// memory or a file ends with it.
func (h *Holder) Drop(number uint64) error {
	h.mu.Lock()
	of, has := h.remove(number)
	h.mu.Unlock()
	if !has {
		return nil
	}
	return h.close(of)
}

// remove takes its number from a descriptor that is about to be closed. The caller holds the lock.
func (h *Holder) remove(number uint64) (of held, has bool) {
	if of, has = h.held[number]; has {
		delete(h.held, number)
		h.closing++
		if of.leaving {
			h.leaving--
		}
	}
	return of, has
}

func (h *Holder) close(of held) error {
	err := unix.Close(of.descriptor)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closing--
	return err
}

// Leave begins to give a descriptor to another process: until Drop or Stay, only Use and Copy reach it. It reports
// whether the descriptor was held, and was not leaving already.
func (h *Holder) Leave(number uint64) bool { return h.leave(number, true) }

// Stay is for a descriptor that the other process has not got.
func (h *Holder) Stay(number uint64) { h.leave(number, false) }

func (h *Holder) leave(number uint64, leaves bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, has := h.held[number]
	if !has || of.leaving == leaves {
		return false
	}
	of.leaving = leaves
	h.held[number] = of
	if leaves {
		h.leaving++
	} else {
		h.leaving--
	}
	return true
}

// Bytes returns the bytes that came with a descriptor, and reports whether one of that number is held.
func (h *Holder) Bytes(number uint64) (bytes uint64, has bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, has := h.held[number]
	return of.bytes, has && !of.leaving
}

// Numbers lists what is held, and not leaving, in order.
func (h *Holder) Numbers() (numbers []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for number, of := range h.held {
		if !of.leaving {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// Forget is for a Holder whose table is gone: it holds nothing from then on, and closes nothing.
func (h *Holder) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held, h.leaving, h.closing = nil, 0, 0
}

// Count returns how many descriptors are held or being closed.
func (h *Holder) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count()
}

func (h *Holder) count() int { return len(h.held) - h.leaving + h.closing }

func duplicate(descriptor int) (int, error) {
	return unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
}
