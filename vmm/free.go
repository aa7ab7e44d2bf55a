package vmm

import (
	"errors"
	"fmt"

	"tms/vmm/cuda"
	"tms/vmm/store"
)

// Free ends an allocation, on the calling thread, after the devices have finished with it. The system has the host
// memory of its contents back when Free returns, unless that takes long: see store.Discarded. While a stream is being
// captured nothing may wait, so FreeDeferred makes the free later. After any other error the allocation is still there,
// and the caller can try again. Errors: ErrInvalidAddress, *cuda.Error. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Free(address uintptr, capturing bool) (err error) {
	if !capturing {
		err = e.Quiesce(address)
		capturing = errors.Is(err, ErrCapturing) // the program began a capture that the caller did not see
	}
	if err != nil && !capturing {
		return fmt.Errorf("freeing %#x: %w", address, err)
	}
	return e.FreeIdle(address, capturing)
}

// Quiesce waits until the devices have done the work they hold now, as Free does before it frees the memory at an
// address. It does not wait for memory that cannot be in use. Errors: ErrCapturing, *cuda.Error. (cuCtxSynchronize)
func (e *Engine) Quiesce(address uintptr) error {
	d := e.using(address)
	if d == nil {
		return nil
	}
	return e.contexts.Finish(d.ordinal)
}

// using returns the device of the live allocation at an address, or nil if the allocation cannot be in use. It claims
// nothing: the devices' work may depend on a thread that frees something else, or pauses.
func (e *Engine) using(address uintptr) *device {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.around(address).segment; s != nil && s.mapped() {
		return s.device
	}
	return nil
}

// FreeIdle is Free of memory that the caller knows to be unused: it waits for no device.
func (e *Engine) FreeIdle(address uintptr, capturing bool) (err error) {
	defer e.audit(&err)
	given := &store.Discarded{}
	defer given.Await() // when no lock is held
	e.mu.Lock()
	defer e.mu.Unlock()
	a, err := e.claim(address)
	if err != nil {
		return err
	}
	if capturing && a.segment.mapped() {
		e.putOff(pendingFree{allocation: a, stage: unwaited, why: captured})
		return nil
	}
	if a.segment.contents != nil {
		given.Add(a.segment.contents, a.segment.prompt)
	}
	return e.free(a)
}

// FreeContext frees the memory that was allocated in a context that the program is about to destroy. CUDA does so, and
// programs rely on it. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) FreeContext(context cuda.Context, capturing bool) {
	wanted := func(s *segment) bool { return s.backing == own && s.context == context }
	chosen := e.choose(nil, wanted)
	var all []uintptr
	var p pace
	e.mu.Lock()
	for _, s := range chosen {
		switch {
		case !s.listed || !wanted(s):
		case s.slab == nil:
			all = append(all, s.address)
		default:
			s.slab.Each(func(offset uintptr, _ uint64) { all = append(all, s.address+offset) })
			p.yield(e, s.slab.Live)
		}
		p.yield(e, 1)
	}
	e.mu.Unlock()
	if len(all) == 0 {
		return
	}
	if !capturing {
		capturing = errors.Is(e.Quiesce(all[0]), ErrCapturing)
	}
	for _, address := range all {
		_ = e.FreeIdle(address, capturing) // an error leaves the memory to the thread that frees it, or to the driver
	}
}

// Mark returns an event behind a stream's work that may use the memory at an address, or 0 for memory that cannot be in
// use. IsDone destroys the event. Errors: *cuda.Error. (cuStreamGetCtx, cuEventRecord)
func (e *Engine) Mark(address uintptr, stream cuda.Stream) (cuda.Event, error) {
	d := e.using(address)
	if d == nil {
		return 0, nil
	}
	return d.mark(stream)
}

// mark records an event in a stream that uses memory of the device, in the stream's own context: the calling thread
// may have another, or none. (cuStreamGetCtx, cuEventCreate, cuEventRecord)
func (d *device) mark(stream cuda.Stream) (event cuda.Event, err error) {
	context, err := d.driver.StreamGetCtx(stream)
	switch {
	case errors.Is(err, cuda.InvalidContext): // a default stream, on a thread's first call
		context, err = d.context, nil
	case errors.Is(err, cuda.NotSupported): // of a green context
		context, err = d.driver.CtxGetCurrent()
	}
	if err != nil {
		return 0, err
	}
	err = d.driver.With(context, func() error {
		if event, err = d.driver.EventCreate(); err != nil {
			return err
		}
		if err = d.driver.EventRecord(event, stream); err != nil {
			d.driver.DropEvent(event)
		}
		return err
	})
	return event, err
}

// IsDone reports whether the work of a Mark is done, or has gone with its context; it then destroys the event.
// (cuEventQuery)
func (e *Engine) IsDone(event cuda.Event) bool {
	ask := func() error { return e.driver.EventQuery(event) }
	if errors.Is(e.driver.Relaxed(ask), cuda.NotReady) {
		return false
	}
	e.driver.DropEvent(event)
	return true
}

// claim marks the allocation at an address as being freed, once no transition works on it. The caller holds e.mu.
func (e *Engine) claim(address uintptr) (allocation, error) {
	for {
		a := e.around(address)
		s := a.segment
		if s == nil || a.address() != address || s.backing != own {
			return allocation{}, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
		}
		if s.owner == aTransition {
			e.settled.Wait()
			continue
		}
		if s.ordered {
			s.device.ordered.used -= a.size()
		}
		if a.small {
			s.slab.SetFreeing(a.offset, true)
		} else {
			s.owner = aFree
		}
		return a, nil
	}
}

// free ends a claimed allocation that the devices are done with; after an error it is live again. The caller holds
// e.mu, which is released for driver calls.
func (e *Engine) free(a allocation) error {
	err := e.drop(a)
	if err != nil {
		s, gone := a.segment, a.small && a.segment.slab == nil // a reset of the device has taken all of it
		if s.ordered && !gone {
			s.device.ordered.use(a.size())
		}
		if !a.small {
			s.reinstate()
		} else if !gone {
			s.slab.SetFreeing(a.offset, false)
		}
		err = fmt.Errorf("freeing %#x: %w", a.address(), err)
	}
	return err
}
