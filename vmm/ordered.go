package vmm

import (
	"errors"
	"slices"
	"time"

	"tms/internal/clock"
	"tms/internal/guard"
	"tms/vmm/cuda"
)

// orderedFree is a free that takes effect when its stream has come to it.
type orderedFree struct {
	allocation
	event  cuda.Event // recorded in the stream at the free
	making bool       // its stream has come to it
}

// FreeAfter ends an allocation once the stream has done the work it holds now, as cudaFreeAsync. The
// caller waits for none of that, only for a pause or resume that works on the segment at the
// moment; a thread of ours looks now and then how far the stream is. The stream must not be being captured.
// Errors: ErrInvalidAddress, *cuda.Error; the segment is then still there.
// (cuStreamGetCtx, cuEventRecord, cuEventQuery, cuMemUnmap, cuMemRelease)
func (e *Engine) FreeAfter(address uintptr, stream cuda.Stream) (err error) {
	defer e.audit(&err)
	e.mu.Lock()
	s := e.around(address).segment
	mapped := s != nil && s.mapped()
	e.mu.Unlock()
	var event cuda.Event
	if mapped { // else no stream can be using it
		// Before the claim, so that nothing is claimed if it cannot be had.
		if event, err = e.mark(stream, address); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	a, err := e.claim(address)
	ordered := err == nil && mapped && a.segment.mapped()
	if mapped && !ordered {
		_ = e.unlocked(func() error { e.driver.DropEvent(event); return nil })
	}
	if err != nil {
		return err
	}
	if !ordered {
		return e.free(a, nil)
	}
	a.late = true
	e.ordered = append(e.ordered, &orderedFree{allocation: a, event: event})
	if !e.reaping {
		e.reaping = true
		go func() { _ = guard.Call(e.reap) }()
	}
	return nil
}

// mark records an event in a stream, in the stream's own context: it may be another than the calling
// thread's, which may have none. (cuStreamGetCtx, cuEventCreate, cuEventRecord)
func (e *Engine) mark(stream cuda.Stream, address uintptr) (event cuda.Event, err error) {
	context, err := e.driver.StreamGetCtx(stream)
	switch {
	case errors.Is(err, cuda.InvalidContext): // a default stream, on a thread's first call: of the memory's device
		e.mu.Lock()
		if s := e.segmentAt(address); s != nil {
			context, err = s.device.context, nil
		}
		e.mu.Unlock()
	case errors.Is(err, cuda.NotSupported): // of a green context
		context, err = e.driver.CtxGetCurrent()
	}
	if err != nil {
		return 0, err
	}
	err = e.driver.With(context, func() error {
		if event, err = e.driver.EventCreate(); err != nil {
			return err
		}
		if err = e.driver.EventRecord(event, stream); err != nil {
			e.driver.DropEvent(event)
		}
		return err
	})
	return event, err
}

// Streams come to their frees in any order, and one that never does must not hold up the others: so they are
// asked, not waited for.
const (
	firstLook = 20 * time.Microsecond
	lastLook  = time.Millisecond
)

// reap makes ordered frees until there are none. One that fails waits for the next FreeDeferred.
func (e *Engine) reap() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.reaping = false }()
	for pause := firstLook; len(e.ordered) > 0; pause = min(2*pause, lastLook) {
		for _, o := range slices.Clone(e.ordered) {
			waited := e.unlocked(func() error { return e.reached(o) })
			if errors.Is(waited, cuda.NotReady) {
				continue
			}
			o.making = true
			_ = e.free(o.allocation, waited)
			e.ordered = slices.DeleteFunc(e.ordered, func(other *orderedFree) bool { return other == o })
			o.segment.device.reaped++
			e.reaped.Broadcast()
			pause = firstLook
		}
		_ = e.unlocked(func() error { clock.Sleep(pause); return nil })
	}
	return nil
}

// reached returns nil when the stream has come to a free; NotReady: it has not.
func (e *Engine) reached(o *orderedFree) error {
	err := e.driver.With(o.segment.device.context, func() error { return e.driver.EventQuery(o.event) })
	if !errors.Is(err, cuda.NotReady) {
		e.driver.DropEvent(o.event)
	}
	return err
}

// waitOrdered waits until the ordered frees on these devices that there are now have been made.
func (e *Engine) waitOrdered(devices []*device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range slices.Clone(e.ordered) {
		for slices.Contains(devices, o.segment.device) && slices.Contains(e.ordered, o) {
			e.reaped.Wait()
		}
	}
}

// patience is for a program that runs ahead of its streams. A stream may also wait for the very thread that
// allocates, so it ends.
const patience = time.Second

// awaitOrdered waits until more than since ordered frees have been made on a device, and returns how many there
// are; false: none that is pending comes.
func (e *Engine) awaitOrdered(d *device, since uint64) (made uint64, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pending := func(o *orderedFree) bool { return o.segment.device == d }
	for start := time.Now(); d.reaped == since && slices.ContainsFunc(e.ordered, pending) && time.Since(start) < patience; {
		_ = e.unlocked(func() error { clock.Sleep(lastLook / 4); return nil })
	}
	return d.reaped, d.reaped > since
}
