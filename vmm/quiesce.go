package vmm

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/cuda"
)

// quiesce waits for all that can be using memory to which the devices have access: every context of each. The
// driver does not wait when memory is unmapped; work that still uses it dies with an error that stays.
//
// How long that takes is the program's affair: a stream may wait for a host thread, which may be about to
// call us. So the caller holds no lock and has claimed nothing. (cuCtxRecordEvent, cuEventSynchronize)
func (e *Engine) quiesce(ordinals ...int) error {
	for _, ordinal := range ordinals {
		if err := e.withPrimary(ordinal, e.synchronize); err != nil {
			return err
		}
		if err := e.contexts(ordinal, e.synchronize); err != nil {
			return err
		}
	}
	return nil
}

// quiesceUsers is quiesce of the devices that have access to memory of this one.
func (e *Engine) quiesceUsers(d *device) error {
	if err := e.synchronize(d.context); err != nil {
		return err
	}
	if err := e.contexts(d.ordinal, e.synchronize); err != nil {
		return err
	}
	if users := d.users(); len(users) > 1 { // its own is the first
		return e.quiesce(users[1:]...)
	}
	return nil
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

// quiesceAll is quiesce of the devices that have access to memory of any of these, and of those that the program itself has
// given access to what it mapped of a tag.
func (e *Engine) quiesceAll(devices []*device, name *string) error {
	var ordinals []int
	for _, d := range devices {
		ordinals = append(ordinals, d.users()...)
	}
	ordinals = append(ordinals, e.accessors(name)...)
	slices.Sort(ordinals)
	err := e.quiesce(slices.Compact(ordinals)...)
	if captureForbids(err) {
		return fmt.Errorf("%w: %w", ErrCapturing, err)
	}
	return err
}

// accessors lists the devices that the program itself has given access to what it mapped of a tag.
func (e *Engine) accessors(name *string) (ordinals []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, segments := range e.matching(name, func(s *segment) bool { return s.userMapped != nil }) {
		for _, s := range segments {
			for _, desc := range s.userMapped.access {
				if desc.Location.Kind == cuda.LocationDevice {
					ordinals = append(ordinals, int(desc.Location.ID))
				}
			}
		}
	}
	return ordinals
}
