package vmm

import (
	"fmt"

	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// shortage is the error of a resume that lacks memory of a device. It wraps the driver's.
type shortage struct {
	error
	device *device
	lacks  uint64 // bytes that the resume has yet to take of it
}

func (s *shortage) Unwrap() error { return s.error }

// shortageOn completes the error of a resume that is to take need bytes, of which it holds some already. A resume that
// has not tried yet has the cause nil, and shortageOn returns nil if it may succeed. (cuMemGetInfo)
func (e *Engine) shortageOn(d *device, held, need uint64, cause error) error {
	free, err := d.driver.FreeBytes(d.context)
	if err != nil {
		return cause
	}
	free += held
	if cause == nil && free >= need {
		return nil
	} else if cause == nil {
		cause = cuda.OutOfMemory
	}
	e.mu.Lock()
	name := stats.DeviceName(d.ordinal, d.uuid) // a reader may number the GPUs otherwise than the program does
	e.mu.Unlock()
	return &shortage{fmt.Errorf("%s has %s free and %s are needed%s%.0w", // the figures say what the cause does
		name, readable.Bytes(free), readable.Bytes(need), e.slackNote(d, cause), cause), d, need - held}
}
