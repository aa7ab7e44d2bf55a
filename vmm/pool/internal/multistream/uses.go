// Package multistream is for pools that serve several streams: freed blocks that other streams still use, and the
// private pools of CUDA graphs. The pool's mutex covers both, unless a comment says otherwise.
package multistream

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/pool"
)

// Uses notes which other streams use a block, by its address, and holds a freed block back until they are done with it.
type Uses struct {
	events   pool.Events
	streams  map[uintptr][]pool.Stream // that use a block, and are in no event yet
	pending  map[uintptr]int           // events of a freed block that are not done
	queues   []queue                   // of events, one for each stream, so that none waits for another stream
	deferred []uintptr                 // freed during a capture, after which their events are recorded
	done     []uintptr                 // no stream uses them
}

// queue holds a stream's events, the oldest first.
type queue struct {
	stream  pool.Stream
	waiting []waiting
}

type waiting struct {
	event pool.Event
	block uintptr
}

func NewUses(events pool.Events) Uses {
	return Uses{events: events, streams: map[uintptr][]pool.Stream{}, pending: map[uintptr]int{}}
}

func (u *Uses) Note(block uintptr, stream pool.Stream) {
	if !slices.Contains(u.streams[block], stream) {
		u.streams[block] = append(u.streams[block], stream)
	}
}

func (u *Uses) Any() bool { return len(u.streams) > 0 }

// Held returns the number of freed blocks held back.
func (u *Uses) Held() int { return len(u.pending) + len(u.deferred) + len(u.done) }

// Hold holds a freed block back until Settle hands it on, if other streams use it. During a capture, when CUDA forbids
// events, it leaves recording them to the end. Errors: that of recording an event; the block is then still live.
func (u *Uses) Hold(block uintptr, capturing bool) (held bool, err error) {
	if len(u.streams) == 0 || len(u.streams[block]) == 0 {
		return false, nil
	}
	if capturing {
		u.deferred = append(u.deferred, block)
		return true, nil
	}
	err = u.record(block)
	return err == nil, err
}

// record makes an event in each stream that uses a block. An error changes nothing.
func (u *Uses) record(block uintptr) error {
	streams := u.streams[block]
	events := make([]pool.Event, len(streams))
	for i, stream := range streams {
		event, err := u.events.Record(stream)
		if err != nil {
			for _, made := range events[:i] {
				_ = u.events.Destroy(made)
			}
			return fmt.Errorf("recording an event of stream %#x: %w", uintptr(stream), err)
		}
		events[i] = event
	}
	for i, stream := range streams {
		at := slices.IndexFunc(u.queues, func(q queue) bool { return q.stream == stream })
		if at < 0 {
			at = len(u.queues)
			u.queues = append(u.queues, queue{stream: stream})
		}
		u.queues[at].waiting = append(u.queues[at].waiting, waiting{events[i], block})
	}
	u.pending[block] = len(events)
	delete(u.streams, block)
	return nil
}

// Settle hands the blocks that no stream uses any longer to give. With wait, it first waits until no stream uses any of
// them. A block that give refuses stays for the next time. Errors: those of events, and of give.
func (u *Uses) Settle(wait bool, give func(uintptr) error) (failed error) {
	for len(u.deferred) > 0 {
		if failed = u.record(u.deferred[0]); failed != nil {
			break
		}
		u.deferred = u.deferred[1:]
	}
	for i := range u.queues {
		for q := &u.queues[i]; len(q.waiting) > 0; q.waiting = q.waiting[1:] {
			first := q.waiting[0]
			done, err := true, error(nil)
			if wait {
				err = u.events.Synchronize(first.event)
			} else {
				done, err = u.events.Query(first.event)
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("an event of stream %#x: %w", uintptr(q.stream), err))
			}
			if err != nil || !done {
				break
			}
			_ = u.events.Destroy(first.event)
			if u.pending[first.block]--; u.pending[first.block] == 0 {
				delete(u.pending, first.block)
				u.done = append(u.done, first.block)
			}
		}
	}
	u.queues = slices.DeleteFunc(u.queues, func(q queue) bool { return len(q.waiting) == 0 })
	u.done = slices.DeleteFunc(u.done, func(block uintptr) bool {
		err := give(block)
		failed = errors.Join(failed, err)
		return err == nil
	})
	return failed
}

// Abandon waits and settles, and then forgets all blocks, even after an error.
func (u *Uses) Abandon(give func(uintptr) error) error {
	err := u.Settle(true, give)
	for _, q := range u.queues {
		for _, w := range q.waiting {
			_ = u.events.Destroy(w.event)
		}
	}
	*u = NewUses(u.events)
	return err
}
