package vmm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tms/internal/backoff"
	"tms/vmm/cuda"
)

// A gated pause stops a program that does not cooperate: libtms_reach.so holds its threads at their next CUDA call, the
// engine waits for the work that they have submitted, and the threads go on when all memory is back. The engine knows
// neither the threads nor what holds them.

// Gated reports whether a gated pause still keeps anything paused.
func (r Records) Gated() bool {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gating
}

// GatedTags lists the tags of which gated pauses keep something paused. It is never nil.
func (r Records) GatedTags() []string {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	names := map[string]bool{}
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		for name, t := range d.tags {
			if p.yield(e, 1); t.gated > 0 {
				names[name] = true
			}
		}
	}
	return slices.AppendSeq([]string{}, maps.Keys(names))
}

// tellPaused is called after anything that may have ended the last gated pause, or changed whether something is exposed.
// The caller holds e.mu.
func (e *Engine) tellPaused() {
	gated, exposed := 0, 0
	for _, d := range e.devices {
		gated += d.gated
		exposed += d.exposed
	}
	if was := e.exposing; was != (exposed > 0) {
		e.exposing = !was
		e.process.Exposed(e.exposing)
	}
	if was := e.gating; was != (gated > 0) {
		if e.gating = gated > 0; was {
			e.process.Ungated()
		}
	}
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
