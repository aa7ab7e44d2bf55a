package vmm

import "tms/vmm/cuda"

// Contexts calls use with each context of a device, by its ordinal, that the program has made itself, one after
// the other, and sees to it that none of them is destroyed meanwhile; it ends with the first error of use. The
// primary context is not one of them.
type Contexts func(ordinal int, use func(cuda.Context) error) error

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
