package vmm

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/cuda"
)

// quiesce waits for all that can be using memory of some devices: every context of the process. Access tells no more: a
// copy by another device's stream needs none where the driver stages it. The driver does not wait when memory is
// unmapped; work that still uses it dies with an error that stays.
//
// How long that takes is the program's affair: a stream may wait for a host thread, which may be about to
// call us. So the caller holds no lock and has claimed nothing. (cuCtxRecordEvent, cuEventSynchronize)
func (e *Engine) quiesce(of ...*device) error {
	err := e.eachContext(func(ordinal int, context cuda.Context) error {
		err := e.synchronize(context)
		if cuda.Ended(err) && !slices.ContainsFunc(of, func(d *device) bool { return d.ordinal == ordinal }) {
			return nil // its work has ended with it, and it is nothing to whose memory this is
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

// eachContext calls use with the contexts that there are: primary ones, and those that the program has made.
func (e *Engine) eachContext(use func(ordinal int, context cuda.Context) error) error {
	count, err := e.driver.DeviceCount()
	for ordinal := 0; ordinal < count && err == nil; ordinal++ {
		of := func(context cuda.Context) error { return use(ordinal, context) }
		if err = e.withPrimary(ordinal, of); err == nil {
			err = e.contexts(ordinal, of)
		}
	}
	return err
}

// withPrimary calls use with a device's primary context, if there is one: it is made neither by that nor kept by it.
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

// synchronize waits for a context. Nobody may begin a capture while cuCtxSynchronize, which is for drivers before CUDA
// 12.5, is entered, and nobody can be kept from it as long as that may take.
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

// recordWork makes an event of all that the current context was given so far. That breaks the captures that there are,
// so there are none at that moment. Errors: cuda.NotSupported before CUDA 12.5; cuda.StreamCaptureUnsupported.
func (e *Engine) recordWork(context cuda.Context) (event cuda.Event, err error) {
	if event, err = e.driver.EventCreate(); err != nil {
		return 0, err
	}
	if err = e.withoutCaptures(func() error { return e.driver.CtxRecordEvent(context, event) }); err != nil {
		e.driver.DropEvent(event)
	}
	return event, err
}

// WithoutCaptures sets what calls a short function while no stream is being captured, and holds up those that would
// begin a capture; where there is one it returns cuda.StreamCaptureUnsupported instead. Call it before anything else.
func (e *Engine) WithoutCaptures(call func(f func() error) error) { e.withoutCaptures = call }
