package vmm

import (
	"errors"
	"fmt"
	"time"

	"tms/internal/clock"
	"tms/vmm/cuda"
)

// A gated pause is one that a program does not help with: its threads are held up before they give the devices more
// work (libtms_reach.so), what they have given is waited for here, and they go on when all is back. Who is held up
// is not known here, nor by what.

// WhenUngated sets what is called, with a lock held, whenever nothing is left that a gated pause (Options.Gated) has
// paused: it is resumed, or freed, or its device was reset. Call it before anything else.
func (e *Engine) WhenUngated(call func()) { e.whenUngated = call }

// Gated tells whether something is paused by a gated pause.
func (e *Engine) Gated() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gating
}

// tellUngated comes after whatever may have changed that. The caller holds e.mu.
func (e *Engine) tellUngated() {
	count := 0
	for _, d := range e.devices {
		count += d.gated
	}
	if was := e.gating; was != (count > 0) {
		if e.gating = count > 0; was {
			e.whenUngated()
		}
	}
}

// ErrBusy: a device has not done its work in time.
var ErrBusy = errors.New("the devices have not finished the work that they were given")

// AwaitIdle waits until all contexts of all devices have done what they were given, as long as nobody gives them
// more. It asks and does not wait in the driver, so that it can give up. busy makes the error for that, with the
// context current: ask tells whether a stream has something left to do.
// Errors: ErrCapturing, that of busy, *cuda.Error. (cuCtxRecordEvent, cuEventQuery, cuCtxSynchronize)
func (e *Engine) AwaitIdle(until time.Time, busy func(ordinal int, ask func(cuda.Stream) bool) error) error {
	return e.eachContext(func(ordinal int, context cuda.Context) error {
		err := e.driver.With(context, func() error { return e.awaitContext(context, until) })
		if captureForbids(err) {
			return fmt.Errorf("%w: %w", ErrCapturing, err)
		}
		if errors.Is(err, ErrBusy) {
			return e.driver.With(context, func() error { return busy(ordinal, e.streamIsBusy) })
		}
		return err
	})
}

func (e *Engine) streamIsBusy(stream cuda.Stream) bool {
	return errors.Is(e.driver.StreamQuery(stream), cuda.NotReady)
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
	for asked := false; err == nil; asked = true {
		if err = e.driver.EventQuery(event); err == nil || !errors.Is(err, cuda.NotReady) {
			return err
		}
		err = rest(asked, until)
	}
	return err
}

// awaitContextAside is for drivers before CUDA 12.5, which cannot be asked about a context. A thread of ours waits in
// the driver, and may still do so when this has given up; there is one at a time.
func (e *Engine) awaitContextAside(context cuda.Context, until time.Time) error {
	for asked := false; !e.waitingAside.CompareAndSwap(false, true); asked = true {
		if err := rest(asked, until); err != nil {
			return err
		}
	}
	result := make(chan error, 1)
	go func() {
		defer e.waitingAside.Store(false)
		result <- e.synchronize(context)
	}()
	for asked := false; ; asked = true {
		select {
		case err := <-result:
			return err
		default:
		}
		if err := rest(asked, until); err != nil {
			return err
		}
	}
}

// rest sleeps before what is awaited is looked at again; ErrBusy when it is time to give up.
func rest(asked bool, until time.Time) error {
	left := time.Until(until)
	switch {
	case left <= 0:
		return ErrBusy
	case asked:
		clock.Sleep(min(left, 200*time.Microsecond))
	default:
		clock.Sleep(min(left, 20*time.Microsecond))
	}
	return nil
}
