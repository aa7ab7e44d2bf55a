package vmm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"tms/internal/aid/backoff"
	"tms/vmm/cuda"
)

// quiesce waits for every context of the process, because any of them can be using memory of the devices: a copy by
// another device's stream needs no access where the driver stages it. The driver does not wait when memory is unmapped;
// work that still uses it dies with a sticky error.
//
// The program decides how long that takes: a stream may wait for a host thread, which may be about to call us. So the
// caller holds no lock and has claimed nothing. (cuCtxRecordEvent, cuEventSynchronize)
func (e *Engine) quiesce(of ...*device) error {
	err := e.eachContext(func(ordinal int, context cuda.Context) error {
		err := e.synchronize(context)
		if cuda.Ended(err) && !slices.ContainsFunc(of, func(d *device) bool { return d.ordinal == ordinal }) {
			return nil // its work has ended with it, and the memory is not on its device
		}
		return err
	})
	if captureForbids(err) {
		return fmt.Errorf("%w: %w", ErrCapturing, err)
	}
	return err
}

func captureForbids(err error) bool {
	return errors.Is(err, cuda.StreamCaptureUnsupported) || errors.Is(err, cuda.StreamCaptureImplicit)
}

// eachContext calls use with every context: the primary ones, and those that the program has made.
func (e *Engine) eachContext(use func(ordinal int, context cuda.Context) error) error {
	count, err := e.driver.DeviceCount()
	for ordinal := 0; ordinal < count && err == nil; ordinal++ {
		of := func(context cuda.Context) error { return use(ordinal, context) }
		if err = e.withPrimary(ordinal, of); err == nil {
			err = e.process.Contexts(ordinal, of)
		}
	}
	return err
}

// withPrimary calls use with a device's primary context, if there is one, and neither makes nor keeps it.
func (e *Engine) withPrimary(ordinal int, use func(cuda.Context) error) error {
	e.mu.Lock()
	d := e.devices[ordinal]
	e.mu.Unlock()
	if d != nil {
		return use(d.context)
	}
	device, err := e.driver.DeviceGet(ordinal)
	if err != nil {
		return err
	}
	if active, err := e.driver.DevicePrimaryCtxGetState(device); err != nil || !active {
		return err
	}
	context, err := e.driver.DevicePrimaryCtxRetain(device)
	if err != nil {
		return err
	}
	defer e.driver.End("context", func() error { return e.driver.DevicePrimaryCtxRelease(device) })
	return use(context)
}

// synchronize waits for a context. On drivers before CUDA 12.5 no capture may begin while it enters cuCtxSynchronize,
// but it cannot keep the program from beginning one for as long as that call waits.
func (e *Engine) synchronize(context cuda.Context) error {
	return e.driver.With(context, func() error {
		event, err := e.recordWork(context)
		if errors.Is(err, cuda.NotSupported) {
			return e.driver.CtxSynchronize()
		}
		if err != nil {
			return err
		}
		defer e.driver.DropEvent(event)
		return e.driver.EventSynchronize(event)
	})
}

// recordWork records an event behind all work that the context has so far. That breaks captures, so it is done at a
// moment without any. Errors: cuda.NotSupported before CUDA 12.5; cuda.StreamCaptureUnsupported.
func (e *Engine) recordWork(context cuda.Context) (event cuda.Event, err error) {
	if event, err = e.driver.EventCreate(); err != nil {
		return 0, err
	}
	if err = e.process.WithoutCaptures(func() error { return e.driver.CtxRecordEvent(context, event) }); err != nil {
		e.driver.DropEvent(event)
	}
	return event, err
}

// Admit refuses, as Malloc does, a caller in a context that the engine could not wait for; current is that context, 0
// if it is not known. Errors: ErrContext, *cuda.Error. (cuCtxGetCurrent, cuCtxSetCurrent)
func (e *Engine) Admit(ordinal int, current cuda.Context) error {
	e.mu.Lock()
	d, err := e.device(ordinal)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return e.admit(d, current)
}

// admit refuses to make memory in a context that the engine could not wait for, and gives a thread without a context
// the device's primary one, as the first runtime call of a thread does. (cuCtxGetCurrent, cuCtxSetCurrent)
func (e *Engine) admit(d *device, current cuda.Context) error {
	if current == d.context {
		return nil
	}
	runtime.LockOSThread() // the calls ask about one thread
	defer runtime.UnlockOSThread()
	context, err := e.driver.CtxGetCurrent()
	switch {
	case err != nil || context == d.context:
		return err
	case context == 0:
		return e.driver.CtxSetCurrent(d.context)
	}
	ordinal, err := e.driver.CtxGetDevice()
	if err != nil {
		return err
	}
	known := false
	look := func(c cuda.Context) error {
		known = known || c == context
		return nil
	}
	if err := e.withPrimary(ordinal, look); err != nil || known {
		return err
	}
	if err := e.process.Contexts(ordinal, look); err != nil || known {
		return err
	}
	return ErrContext
}

// errBusy: a device has not finished its work in time.
var errBusy = errors.New("the devices have not finished the work that they were given")

// AwaitIdle waits until all contexts of all devices have done their work, as long as the program gives them no more. It
// polls instead of waiting in the driver, so that it can give up: it then returns the device that has not finished,
// else -1. Errors: ErrCapturing, *cuda.Error. (cuCtxRecordEvent, cuEventQuery, cuCtxSynchronize)
func (e *Engine) AwaitIdle(until time.Time) (busy int, err error) {
	busy = -1
	err = e.eachContext(func(ordinal int, context cuda.Context) error {
		err := e.driver.With(context, func() error { return e.awaitContext(context, until) })
		if cuda.Gone(err) || errors.Is(err, cuda.InvalidHandle) {
			return nil // the program has reset the device: its work and our event ended with the context
		}
		if captureForbids(err) {
			return fmt.Errorf("%w: %w", ErrCapturing, err)
		}
		if errors.Is(err, errBusy) {
			busy = ordinal
		}
		return err
	})
	return busy, err
}

// AwaitAllocations waits until the driver has made the memory that it has been asked for so far, but not beyond until. A
// thread that allocates may be past the gate, and what it gets after a pause would stay active. What is asked for later
// is not waited for: another thread may allocate without end.
func (e *Engine) AwaitAllocations(until time.Time) {
	last := map[*device]uint64{} // requests
	e.mu.Lock()
	for _, d := range e.devices {
		last[d] = d.requests
	}
	e.mu.Unlock()
	making := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for d, request := range last {
			if len(d.unanswered) > 0 && d.unanswered[0] <= request {
				return true
			}
		}
		return false
	}
	for wait := soonAgain; making() && wait.Sleep(until); {
	}
}

// awaitContext waits for the current context. The caller runs on a locked thread.
func (e *Engine) awaitContext(context cuda.Context, until time.Time) error {
	event, err := e.recordWork(context)
	if errors.Is(err, cuda.NotSupported) {
		return e.awaitContextAside(context, until)
	}
	if err != nil {
		return err
	}
	defer e.driver.DropEvent(event)
	for wait := soonAgain; ; {
		if err = e.driver.EventQuery(event); err == nil || !errors.Is(err, cuda.NotReady) {
			return err
		}
		if !wait.Sleep(until) {
			return errBusy
		}
	}
}

// soonAgain paces the polling where a pause is held up.
var soonAgain = backoff.Backoff{Next: firstLook, Most: 200 * time.Microsecond}

// awaitContextAside is for drivers before CUDA 12.5, which have no event for a whole context. A thread of the engine
// waits in the driver, and may still wait there after awaitContextAside has given up; there is one such thread at a
// time.
func (e *Engine) awaitContextAside(context cuda.Context, until time.Time) error {
	for wait := soonAgain; !e.waitingAside.CompareAndSwap(false, true); {
		if !wait.Sleep(until) {
			return errBusy
		}
	}
	result := make(chan error, 1)
	go func() {
		defer e.waitingAside.Store(false)
		result <- e.synchronize(context)
	}()
	select {
	case err := <-result:
		return err
	case <-time.After(time.Until(until)):
		return errBusy
	}
}
