// Package reclaim has the one queue of things that the library still has to give back: to the driver (streams, events,
// handles, pinned memory, contexts) and to the system (mappings, files).
//
// A thing enters it in one of two ways. Add leaves it to a thread of the queue, because the caller may hold a lock:
// unpinning 16 GiB takes a quarter of a second, removing a file takes 170 ms for each GiB where the system tells the
// disk about free blocks. Keep takes a thing that the driver has refused. Refused things wait for the next Retry or
// Drain, however they entered; the engine calls one at each pause, resume, trim and reset, at the end of a capture, and
// when memory is short.
package reclaim

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/stats"
)

// Queue is safe for use by many threads. Its zero value is empty.
type Queue struct {
	mu    sync.Mutex
	kinds []*Kind
}

// Kind is the part of a queue that holds things of one kind. Kinds do not wait for each other.
type Kind struct {
	queue *Queue
	what  string

	queued      []item // for a thread of the queue
	now         item   // that the thread is releasing, since begun
	begun       time.Time
	paces       [2]float64 // seconds per byte of the last large releases, or 0 if not known yet
	refused     []item
	added, done uint64    // how many ever entered queued, and left it again
	threads     int       // in the middle of a release
	idle        sync.Cond // something has left queued, or threads is 0
}

type item struct {
	bytes   uint64
	owner   uintptr
	release func() error
	stays   bool  // by Keep
	err     error // the error of the refusal
}

// Kind returns the part for the things that what names.
func (q *Queue) Kind(what string) *Kind {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.kinds {
		if k.what == what {
			return k
		}
	}
	k := &Kind{queue: q, what: what}
	k.idle.L = &q.mu
	q.kinds = append(q.kinds, k)
	return k
}

// Add releases a thing in the background, one of a kind at a time. It never waits. After an error the queue calls
// release again at the next Retry.
func (k *Kind) Add(bytes uint64, release func() error) {
	k.queue.mu.Lock()
	defer k.queue.mu.Unlock()
	k.add(item{bytes: bytes, release: release})
}

func (k *Kind) add(i item) {
	k.queued = append(k.queued, i)
	if k.added++; k.added-k.done == 1 { // else a thread is already at work
		k.threads++
		go k.empty()
	}
}

func (k *Kind) empty() {
	k.queue.mu.Lock()
	defer k.queue.mu.Unlock()
	for len(k.queued) > 0 {
		i := k.queued[0]
		k.queued = k.queued[1:]
		k.now, k.begun = i, time.Now()
		if k.release(i) && i.bytes >= large {
			k.paces = [2]float64{time.Since(k.begun).Seconds() / float64(i.bytes), k.paces[0]}
		}
		k.now = item{}
		k.done++
		k.idle.Broadcast()
	}
	k.leave()
}

// release releases a thing and reports whether that succeeded; else the thing is among the refused. The caller holds
// the queue's lock, which is released for the call.
func (k *Kind) release(i item) bool {
	k.queue.mu.Unlock()
	i.err = guard.Call(i.release)
	k.queue.mu.Lock()
	if i.err != nil {
		k.refused = append(k.refused, i)
	}
	return i.err == nil
}

func (k *Kind) leave() {
	if k.threads--; k.threads == 0 {
		k.idle.Broadcast()
	}
}

// Keep takes a thing of a kind that was refused with err, and keeps it for the next Retry. owner is for Forget.
func (q *Queue) Keep(what string, owner uintptr, err error, release func() error) {
	k := q.Kind(what)
	q.mu.Lock()
	defer q.mu.Unlock()
	k.refused = append(k.refused, item{owner: owner, release: release, stays: true, err: err})
}

// Forget drops what stays of an owner that is about to go: they go with it.
func (q *Queue) Forget(owner uintptr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.kinds {
		k.refused = slices.DeleteFunc(k.refused, func(i item) bool { return i.owner == owner && owner != 0 })
	}
}

// Retry tries the refused releases once more: of Add in the background, of Keep on the calling thread. It returns how
// many of the latter succeeded.
func (q *Queue) Retry() (done int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.kinds { // a kind that is added now has just been tried
		done += k.retry()
	}
	return done
}

// Retry is Queue.Retry of the things of the kind.
func (k *Kind) Retry() {
	k.queue.mu.Lock()
	defer k.queue.mu.Unlock()
	k.retry()
}

func (k *Kind) retry() (done int) {
	refused := k.refused
	k.refused = nil
	k.threads++
	for _, i := range refused {
		if !i.stays {
			k.add(i)
		} else if k.release(i) {
			done++
		}
	}
	k.leave()
	return done
}

// Drain waits until all things of all kinds are given back, or refused once more.
func (q *Queue) Drain() {
	q.mu.Lock()
	kinds := slices.Clone(q.kinds)
	q.mu.Unlock()
	for _, k := range kinds {
		k.Drain()
	}
}

// Drain waits until all things of the kind are given back, or refused once more.
func (k *Kind) Drain() {
	k.queue.mu.Lock()
	defer k.queue.mu.Unlock()
	k.retry()
	for k.threads > 0 {
		k.idle.Wait()
	}
}

// large is the least size of a thing whose pace depends on the bytes, not on the calls: a registration of host memory.
const large = 32 << 20

// Await waits until all things added before are given back, or refused, but not beyond until; the zero Time sets no
// limit. It does not wait at all where, at the better pace of the last two, that would take twice the time.
func (k *Kind) Await(until time.Time) {
	k.queue.mu.Lock()
	defer k.queue.mu.Unlock()
	if !until.IsZero() {
		left := time.Until(until)
		if k.needed() > 2*left {
			return
		}
		defer time.AfterFunc(left, func() {
			k.queue.mu.Lock() // so that a thread that has just read the time is waiting by now
			defer k.queue.mu.Unlock()
			k.idle.Broadcast()
		}).Stop()
	}
	for goal := k.added; k.done < goal && (until.IsZero() || time.Now().Before(until)); {
		k.idle.Wait()
	}
}

// needed returns how long the queued things will take at least, as far as the queue knows. The caller holds the queue's
// lock.
func (k *Kind) needed() time.Duration {
	bytes := k.now.bytes
	for _, i := range k.queued {
		bytes += i.bytes
	}
	took := time.Duration(min(k.paces[0], k.paces[1]) * float64(bytes) * float64(time.Second))
	if k.now.bytes > 0 {
		took -= time.Since(k.begun)
	}
	return took
}

// Waiting lists what is in the queue.
func (q *Queue) Waiting() []stats.Waiting {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := []stats.Waiting{}
	for _, k := range q.kinds {
		if n := int(k.added - k.done); n > 0 {
			w := stats.Waiting{What: k.what, Why: "given back in the background", Count: n}
			for _, i := range k.queued { // except the release that is under way
				w.Bytes += i.bytes
			}
			list = append(list, w)
		}
		for _, i := range k.refused {
			list = stats.Count(list, k.what, "refused: "+i.err.Error(), i.bytes)
		}
	}
	slices.SortFunc(list, func(x, y stats.Waiting) int {
		return cmp.Or(cmp.Compare(x.What, y.What), cmp.Compare(x.Why, y.Why))
	})
	return list
}
