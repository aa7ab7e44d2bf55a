package vmm

import (
	"errors"

	"tms/internal/guard"
	"tms/vmm/cuda"
)

// orderedFree is a free that takes effect when its stream has come to it.
type orderedFree struct {
	allocation
	event cuda.Event // recorded in the stream at the free
}

// FreeAfter ends an allocation once the stream has done the work it holds now, as cudaFreeAsync. The
// caller waits for none of that, only for a pause or resume that works on the segment at the
// moment; a thread of ours waits for the stream. The stream must not be being captured.
// Errors: ErrInvalidAddress, *cuda.Error; the segment is then still there.
// (cuStreamGetCtx, cuEventRecord, cuEventSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) FreeAfter(address uintptr, stream cuda.Stream) (err error) {
	defer e.audit(&err)
	e.mu.Lock()
	a, err := e.claim(address)
	mapped := err == nil && a.segment.mapped()
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if !mapped { // paused: no stream can be using it
		return e.free(a, nil)
	}
	event, err := e.mark(stream, a.segment.device)
	e.mu.Lock()
	defer e.mu.Unlock()
	a = e.unclaim(a)
	if err != nil {
		a.reinstate()
		return err
	}
	a.late = true
	e.ordered = append(e.ordered, orderedFree{a, event})
	if !e.reaping {
		e.reaping = true
		go e.reap()
	}
	return nil
}

// mark records an event in a stream, in the stream's own context: it may be another than the calling
// thread's, which may have none. (cuStreamGetCtx, cuEventCreate, cuEventRecord)
func (e *Engine) mark(stream cuda.Stream, d *device) (event cuda.Event, err error) {
	context, err := e.driver.StreamGetCtx(stream)
	switch {
	case errors.Is(err, cuda.InvalidContext): // a default stream, on a thread's first call
		context = d.context
	case errors.Is(err, cuda.NotSupported): // of a green context
		context, err = e.driver.CtxGetCurrent()
		if err != nil {
			return 0, err
		}
	case err != nil:
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

// reap makes ordered frees until there are none. One that fails waits for the next FreeDeferred.
func (e *Engine) reap() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.ordered) > 0 {
		next := e.ordered[0]
		e.mu.Unlock()
		_ = guard.Call(func() error { return e.freeOrdered(next) })
		e.mu.Lock()
		e.ordered = e.ordered[1:]
		e.made++
		e.reaped.Broadcast()
	}
	e.reaping = false
}

// freeOrdered waits until the stream has come to a free, and makes it.
func (e *Engine) freeOrdered(o orderedFree) error {
	dropped := false
	err := e.driver.With(o.segment.device.context, func() error {
		defer e.driver.DropEvent(o.event)
		dropped = true
		return e.driver.EventSynchronize(o.event)
	})
	if !dropped { // the context was refused
		e.driver.DropEvent(o.event)
	}
	return e.free(o.allocation, err)
}

// waitOrdered waits until the ordered frees there are now have been made; how many there were.
func (e *Engine) waitOrdered() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	waited := len(e.ordered)
	for last := e.made + uint64(waited); e.made < last; {
		e.reaped.Wait()
	}
	return waited
}
