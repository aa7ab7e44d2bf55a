package vmm

import (
	"fmt"
	"slices"

	"tms/vmm/cuda"
)

// quiesce waits for all that can be using memory to which the devices have access: every context of each. The
// driver does not wait when memory is unmapped; work that still uses it dies with an error that stays.
//
// How long that takes is the program's affair: a stream may wait for a host thread, which may be about to
// call us. So the caller holds no lock and has claimed nothing. (cuCtxSynchronize)
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

func (e *Engine) synchronize(context cuda.Context) error {
	return e.driver.With(context, e.driver.CtxSynchronize)
}

// quiesceAll is quiesce of the devices that have access to memory of any of these.
func (e *Engine) quiesceAll(devices []*device) error {
	var ordinals []int
	for _, d := range devices {
		ordinals = append(ordinals, d.users()...)
	}
	slices.Sort(ordinals)
	err := e.quiesce(slices.Compact(ordinals)...)
	if captureForbids(err) {
		return fmt.Errorf("%w: %w", ErrCapturing, err)
	}
	return err
}
