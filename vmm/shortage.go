package vmm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

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

// shortageOf completes the error of a resume. A resume that has not tried yet has the cause nil, and shortageOf returns
// nil if it may succeed. (cuMemGetInfo)
func (e *Engine) shortageOf(b *batch, cause error) error {
	held, need := uint64(0), uint64(0)
	for _, x := range b.extents {
		if x.step > none {
			held += x.size
		}
		need += x.size
	}
	return e.shortageOn(b.device, held, need, cause)
}

// shortageOn is shortageOf where need bytes are to be active, for which the device's memory is held already in part.
func (e *Engine) shortageOn(d *device, held, need uint64, cause error) error {
	free, err := d.freeBytes()
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

// slackNote returns the text behind an out-of-memory error that says how much slack there is.
func (e *Engine) slackNote(d *device, err error) string {
	if !errors.Is(err, cuda.OutOfMemory) {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var held uint64
	var names []string
	var p pace
	for name, t := range d.tags {
		p.yield(e, 1)
		if slack := t.granules * d.granularity; slack > 0 {
			held += slack
			names = append(names, strconv.Quote(name))
		}
	}
	if held == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("; %s of device %d are slack, freed beside memory that is in use: the next pause of the tag "+
		"gives it back (%s)", readable.Bytes(held), d.ordinal, strings.Join(names, ", "))
}

// freeBytes returns the device's own figure for free memory, in bytes.
func (d *device) freeBytes() (bytes uint64, err error) {
	err = d.driver.With(d.context, func() error {
		bytes, _, err = d.driver.MemGetInfo()
		return err
	})
	return bytes, err
}
