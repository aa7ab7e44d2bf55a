package backup

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/guard"
)

// trash gives back, in the background, what a store does not need any more: unpinning 16 GiB takes a
// quarter of a second, removing a file 170 ms for each GiB where the disk is told of free blocks. Whoever
// discards may hold the engine's lock, so add waits neither for the driver nor for a file system.
type trash[T any] struct {
	release func(T) error // after an error it can be called again

	mu          sync.Mutex
	queue       []T
	refused     []T    // by release, for the next time
	added, done uint64 // how many there ever were in the queue, and out of it again
	emptying    bool
	emptied     sync.Cond
}

func newTrash[T any](release func(T) error) *trash[T] {
	t := &trash[T]{release: release}
	t.emptied.L = &t.mu
	return t
}

func (t *trash[T]) add(items ...T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start(items)
}

// start queues items, and what was refused before. The caller holds t.mu.
func (t *trash[T]) start(items []T) {
	t.queue = append(append(t.queue, items...), t.refused...)
	t.added += uint64(len(items) + len(t.refused))
	t.refused = nil
	if len(t.queue) > 0 && !t.emptying {
		t.emptying = true
		go t.empty()
	}
}

func (t *trash[T]) empty() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) > 0 {
		item := t.queue[0]
		t.queue = t.queue[1:]
		t.mu.Unlock()
		err := guard.Call(func() error { return t.release(item) })
		t.mu.Lock()
		t.done++
		if err != nil {
			t.refused = append(t.refused, item)
		}
	}
	t.emptying = false
	t.emptied.Broadcast()
}

// drain waits until all is back, or refused once more.
func (t *trash[T]) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start(nil)
	for t.emptying {
		t.emptied.Wait()
	}
}

// settle waits until all that was added before is back, or refused, but no longer than until; the zero
// Time is no limit. It looks now and then: the runtime's timers would cost the host descriptors.
func (t *trash[T]) settle(until time.Time) {
	t.mu.Lock()
	goal := t.added
	t.mu.Unlock()
	for !t.reached(goal) && (until.IsZero() || time.Now().Before(until)) {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 200_000}, nil)
	}
}

func (t *trash[T]) reached(goal uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done >= goal
}
