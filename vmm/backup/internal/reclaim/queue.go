// Package reclaim gives memory and files back in the background.
package reclaim

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/guard"
)

// Queue gives back, in the background, what a store does not need any more: unpinning 16 GiB takes a
// quarter of a second, removing a file 170 ms for each GiB where the disk is told of free blocks. Whoever
// discards may hold the engine's lock, so Add waits neither for the driver nor for a file system.
type Queue[T any] struct {
	release func(T) error // after an error it can be called again

	mu          sync.Mutex
	queue       []T
	refused     []T    // by release, for the next time
	added, done uint64 // how many there ever were in the queue, and out of it again
	emptying    bool
	emptied     sync.Cond
}

// NewQueue returns a queue; release is called for one item at a time, and again later after an error.
func NewQueue[T any](release func(T) error) *Queue[T] {
	q := &Queue[T]{release: release}
	q.emptied.L = &q.mu
	return q
}

// Add queues items; it never waits.
func (q *Queue[T]) Add(items ...T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.start(items)
}

// start queues items, and what was refused before. The caller holds q.mu.
func (q *Queue[T]) start(items []T) {
	q.queue = append(append(q.queue, items...), q.refused...)
	q.added += uint64(len(items) + len(q.refused))
	q.refused = nil
	if len(q.queue) > 0 && !q.emptying {
		q.emptying = true
		go q.empty()
	}
}

func (q *Queue[T]) empty() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) > 0 {
		item := q.queue[0]
		q.queue = q.queue[1:]
		q.mu.Unlock()
		err := guard.Call(func() error { return q.release(item) })
		q.mu.Lock()
		q.done++
		if err != nil {
			q.refused = append(q.refused, item)
		}
	}
	q.emptying = false
	q.emptied.Broadcast()
}

// Drain waits until all is back, or refused once more.
func (q *Queue[T]) Drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.start(nil)
	for q.emptying {
		q.emptied.Wait()
	}
}

// Settle waits until all that was added before is back, or refused, but no longer than until; the zero
// Time is no limit. It looks now and then: the runtime's timers would cost the host descriptors.
func (q *Queue[T]) Settle(until time.Time) {
	q.mu.Lock()
	goal := q.added
	q.mu.Unlock()
	for !q.reached(goal) && (until.IsZero() || time.Now().Before(until)) {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 200_000}, nil)
	}
}

func (q *Queue[T]) reached(goal uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.done >= goal
}
