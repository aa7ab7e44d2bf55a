package vmm

import (
	"fmt"
	"slices"

	"tms/vmm/cuda"
)

// Contexts calls use with each context of a device, by its ordinal, that the program has made itself, one after
// the other, and sees to it that none of them is destroyed meanwhile; it ends with the first error of use. The
// primary context is not one of them.
type Contexts func(ordinal int, use func(cuda.Context) error) error

// drain waits for all that can be using memory to which the devices have access: every context of each. The
// driver does not wait when memory is unmapped; work that still uses it dies with an error that stays.
//
// How long that takes is the program's affair: a stream may wait for a host thread, which may be about to
// call us. So the caller holds no lock and has claimed nothing. (cuCtxSynchronize)
func (e *Engine) drain(ordinals ...int) error {
	for _, ordinal := range ordinals {
		if err := e.drainPrimary(ordinal); err != nil {
			return err
		}
		if err := e.contexts(ordinal, e.synchronize); err != nil {
			return err
		}
	}
	return nil
}

// drainUsers is drain of the devices that have access to memory of this one.
func (e *Engine) drainUsers(d *device) error {
	if err := e.synchronize(d.context); err != nil {
		return err
	}
	if err := e.contexts(d.ordinal, e.synchronize); err != nil {
		return err
	}
	if users := d.users(); len(users) > 1 { // its own is the first
		return e.drain(users[1:]...)
	}
	return nil
}

func (e *Engine) synchronize(context cuda.Context) error {
	return e.driver.With(context, e.driver.CtxSynchronize)
}

// drainPrimary waits for a primary context, which is made neither by that nor kept by it.
func (e *Engine) drainPrimary(ordinal int) error {
	e.mu.Lock()
	d := e.devices[ordinal]
	e.mu.Unlock()
	if d != nil {
		return e.synchronize(d.context)
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
	return e.synchronize(context)
}

// drainAll is drain of the devices that have access to memory of any of these.
func (e *Engine) drainAll(devices []*device) error {
	var ordinals []int
	for _, d := range devices {
		ordinals = append(ordinals, d.users()...)
	}
	slices.Sort(ordinals)
	err := e.drain(slices.Compact(ordinals)...)
	if captureForbids(err) {
		return fmt.Errorf("%w: %w", ErrCapturing, err)
	}
	return err
}

// admit refuses to make memory in a context that could not be waited for, and gives a thread without a context
// the device's primary one, as the first runtime call of a thread does. (cuCtxGetCurrent, cuCtxSetCurrent)
func (e *Engine) admit(d *device, current cuda.Context) error {
	if current == d.context {
		return nil
	}
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
	if known, err := e.isPrimary(ordinal, context); known || err != nil {
		return err
	}
	known := false
	if err := e.contexts(ordinal, func(c cuda.Context) error {
		known = known || c == context
		return nil
	}); err != nil || known {
		return err
	}
	return ErrContext
}

func (e *Engine) isPrimary(ordinal int, context cuda.Context) (bool, error) {
	e.mu.Lock()
	d := e.devices[ordinal]
	e.mu.Unlock()
	if d != nil {
		return d.context == context, nil
	}
	device, err := e.driver.DeviceGet(ordinal)
	if err != nil {
		return false, err
	}
	if active, err := e.driver.DevicePrimaryCtxGetState(device); err != nil || !active {
		return false, err // to retain it would make one
	}
	primary, err := e.driver.DevicePrimaryCtxRetain(device)
	if err != nil {
		return false, err
	}
	e.driver.End("context", func() error { return e.driver.DevicePrimaryCtxRelease(device) })
	return primary == context, nil
}
