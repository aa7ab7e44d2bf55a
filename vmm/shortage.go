package vmm

import (
	"errors"
	"fmt"
	"strings"

	"tms/internal/readable"
	"tms/vmm/cuda"
)

// shortage is the error of a resume that lacks memory of a device. It wraps the driver's.
type shortage struct {
	error
	device *device
}

func (s *shortage) Unwrap() error { return s.error }

// shortageOf completes the error of a resume. A resume that has not tried yet has the cause nil, and shortageOf returns
// nil if it may succeed. (cuMemGetInfo)
func (e *Engine) shortageOf(b *batch, cause error) error {
	free, err := b.device.freeBytes()
	if err != nil {
		return cause
	}
	need := uint64(0)
	for _, x := range b.extents {
		if x.step > none {
			free += x.size
		}
		need += x.size
	}
	if cause == nil && free >= need {
		return nil
	} else if cause == nil {
		cause = cuda.OutOfMemory
	}
	return &shortage{fmt.Errorf("device %d has %s free and %s are needed%s%.0w", // the figures say what the cause does
		b.device.ordinal, readable.Bytes(free), readable.Bytes(need), e.slackNote(b.device, cause), cause), b.device}
}

// noteWait logs that a resume waits, and the holders of the memory: once, until a resume of the same tags succeeds, because
// a caller may wait in parts.
func (e *Engine) noteWait(o *Options, cause error) {
	o.waits = true
	if _, told := e.waits.LoadOrStore(o.what(), true); told {
		return
	}
	holders := ""
	if short := (*shortage)(nil); errors.As(cause, &short) {
		holders = e.process.Holders(short.device.uuid)
	}
	e.process.Warn(fmt.Sprintf("the resume of %s waits for memory: %v%s", o.what(), cause, holders))
}

// what names the tags of a resume.
func (o *Options) what() string {
	if o.Tags == nil {
		return "all tags"
	}
	return strings.Trim(fmt.Sprintf("%.80q", o.Tags), "[]")
}
