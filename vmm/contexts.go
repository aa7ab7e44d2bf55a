package vmm

import "tms/vmm/cuda"

// Contexts calls use for each context that the program itself has made on a device, one at a time, and keeps the
// program from destroying that context meanwhile. It stops at the first error of use. The primary context is not among
// them.
type Contexts func(ordinal int, use func(cuda.Context) error) error

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
	if err := e.contexts(ordinal, look); err != nil || known {
		return err
	}
	return ErrContext
}
