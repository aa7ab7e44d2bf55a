package vmm

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Transition is what an observer of the engine learns about a pause, resume or move.
type Transition struct {
	Number    uint64   // the same when it begins and when it is over, from 1 on
	Operation string   // "pause", "resume" or "move"
	Tags      []string // nil: every tag
	Over      bool     // else it begins, and nothing more is known
	Err       error
	Bytes     uint64 // of device memory given back or taken; for a move, of contents
	Copied    uint64 // bytes of contents
	// Took is the whole time, including the caller's wait for the program before. Waited is the part spent waiting for
	// the program, the devices, other operations, memory, and discarded contents; Copying is the part spent on
	// contents; the rest is the driver's work on mappings. Each counts the slowest device.
	Took, Waited, Copying time.Duration
}

// spent is how a transition has used its time.
type spent struct {
	asked   time.Time
	waited  time.Duration
	copying time.Duration
	copied  uint64
}

// begun reports that an operation begins. The caller reports its end by over.
func (e *Engine) begun(name string, options Options) *operation {
	start := time.Now()
	o := &operation{Options: options, name: name, number: e.transitions.Add(1), spent: spent{asked: start}}
	if !o.Asked.IsZero() && o.Asked.Before(start) {
		o.spent.asked, o.spent.waited = o.Asked, start.Sub(o.Asked)
	}
	for _, tag := range o.Tags {
		if words := e.names.FirstUse(name, tag); words != "" {
			e.process.Warn(name + ": " + words)
		}
	}
	e.process.Observe(Transition{Number: o.number, Operation: name, Tags: o.Tags})
	return o
}

// over reports the end of an operation.
func (e *Engine) over(o *operation, bytes *uint64, err *error) {
	s := &o.spent
	e.process.Observe(Transition{Number: o.number, Operation: o.name, Tags: o.Tags, Over: true, Err: *err, Bytes: *bytes,
		Copied: s.copied, Took: time.Since(s.asked), Waited: s.waited, Copying: s.copying})
}

// noteWait logs that a resume waits, and the holders of the memory. It does so once until a resume of the same tags
// succeeds, because Python waits in parts.
func (e *Engine) noteWait(o *Options, cause error) {
	if _, noted := e.noted.LoadOrStore(o.what(), true); noted {
		return
	}
	holders := ""
	if short, is := errors.AsType[*shortage](cause); is {
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
