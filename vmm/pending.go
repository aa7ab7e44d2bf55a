package vmm

import (
	"errors"
	"slices"
	"time"

	"tms/internal/backoff"
	"tms/internal/guard"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// pendingFree is a free that its caller believes done, and that is still to come.
type pendingFree struct {
	allocation
	stage stage
	why   string     // the free still waits, for statistics
	event cuda.Event // of onStream: recorded in the stream at the free
}

// stage is how far a pending free is:
//
//	unwaited --renew-->  onDevices --awaitDevices--> due --reap--> made
//	                     onStream  -----reap-------> due --reap--> refused --renew--> due
type stage int

const (
	unwaited  stage = iota // a capture forbids waiting for the devices, or the wait failed
	onDevices              // a thread waits until the devices have finished with it
	onStream               // its stream has not reached it
	due                    // nothing uses the memory any longer
	refused                // by the driver
	made
)

// inProgress reports whether a free will be made without a further call.
func (f *pendingFree) inProgress() bool {
	return f.stage == onDevices || f.stage == onStream || f.stage == due
}

const (
	captured      = "a stream was being captured"
	inUse         = "the devices have not finished with it"
	streamBehind  = "its stream has not come to it"
	refusedPrefix = "refused: "
)

// firstLook is too short to be noticed. Streams reach their frees in any order, and one that never does must not hold
// up the others: so the engine polls them.
const firstLook = 20 * time.Microsecond

// patience is how long to wait for a program that runs ahead of its streams. It is bounded, because a stream may wait
// for the very thread that allocates.
const patience = time.Second

// putOff frees a claimed allocation later. The caller holds e.mu.
func (e *Engine) putOff(f pendingFree) {
	e.pending = append(e.pending, &f)
	e.startReaping()
}

// FreeDeferred makes the frees that a capture or a refusal by the driver has put off, and gives back what else the
// driver has refused. It waits while at least one of them is made each second; the rest are made when the devices have
// finished with them, or stay for the next time.
func (e *Engine) FreeDeferred() {
	e.renew()
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.awaitAny(func(f *pendingFree) bool { return f.stage == onDevices || f.stage == due }) {
	}
}

// renew begins to make the frees that were put off, and returns how many of the other refused things were given back.
func (e *Engine) renew() (back int) {
	back = e.driver.Reclaim.Retry()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.pending {
		switch f.stage {
		case refused:
			f.stage = due
		case unwaited:
			f.stage, f.why = onDevices, inUse
			if d := f.segment.device; !d.waiting {
				d.waiting = true
				go func() { _ = guard.Call(func() error { return e.awaitDevices(d) }) }()
			}
		}
	}
	e.startReaping()
	return back
}

// awaitDevices waits for the devices on behalf of a device's frees, until no free needs it. The program decides how
// long that takes, so nobody waits for it without bound.
func (e *Engine) awaitDevices(d *device) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { d.waiting = false }()
	for {
		frees := filter(e.pending, func(f *pendingFree) bool { return f.stage == onDevices && f.segment.device == d })
		if len(frees) == 0 {
			return nil
		}
		e.waited(frees, e.unlocked(func() error { return e.quiesce(d) }))
	}
}

// waited notes that the devices have finished with frees, or why that is unknown. The caller holds e.mu.
func (e *Engine) waited(frees []*pendingFree, err error) {
	for _, f := range frees {
		switch {
		case f.stage == onStream || f.stage == made: // reap makes it, or has made it
		case err == nil:
			f.stage = due
		case errors.Is(err, ErrCapturing):
			f.stage, f.why = unwaited, captured
		default:
			f.stage, f.why = unwaited, refusedPrefix+err.Error()
		}
	}
	e.startReaping()
	e.settled.Broadcast()
}

func reapable(f *pendingFree) bool { return f.stage == due || f.stage == onStream }

// startReaping starts a thread for the frees that are due, or wait for streams. The caller holds e.mu.
func (e *Engine) startReaping() {
	if !e.reaping && slices.ContainsFunc(e.pending, reapable) {
		e.reaping = true
		go func() { _ = guard.Call(e.reap) }()
	}
}

// reap is the one place that makes pending frees.
func (e *Engine) reap() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.reaping = false }()
	first := backoff.Backoff{Next: firstLook, Most: time.Millisecond}
	for wait := first; slices.ContainsFunc(e.pending, reapable); {
		for _, f := range filter(e.pending, reapable) {
			if e.makePending(f) {
				wait = first
				e.settled.Broadcast()
			}
		}
		e.pending = slices.DeleteFunc(e.pending, func(f *pendingFree) bool { return f.stage == made })
		_ = e.unlocked(func() error { wait.Sleep(time.Time{}); return nil })
	}
	return nil
}

// makePending makes a free, unless its stream has not reached it, and reports whether anything changed.
func (e *Engine) makePending(f *pendingFree) bool {
	if f.stage == onStream {
		err := e.unlocked(func() error {
			return e.driver.With(f.segment.device.context, func() error { return e.driver.EventQuery(f.event) })
		})
		if errors.Is(err, cuda.NotReady) {
			return false
		}
		_ = e.unlocked(func() error { e.driver.DropEvent(f.event); return nil })
		if err != nil {
			f.stage, f.why = unwaited, refusedPrefix+err.Error()
			return true
		}
		f.stage = due
	}
	f.why = "it is being made"
	if err := guard.Call(func() error { return e.drop(f.allocation) }); err != nil {
		f.stage, f.why = refused, refusedPrefix+err.Error()
	} else {
		f.stage = made
		f.segment.device.made++
	}
	return true
}

// awaitAny waits until meant no longer picks one of the frees that it picks now. It returns false where it picks none,
// or where none was made for too long. The caller holds e.mu.
func (e *Engine) awaitAny(meant func(*pendingFree) bool) bool {
	before := filter(e.pending, meant)
	for start := time.Now(); len(before) > 0 && time.Since(start) < patience; {
		_ = e.unlocked(func() error { time.Sleep(250 * time.Microsecond); return nil })
		if slices.ContainsFunc(before, func(f *pendingFree) bool { return !meant(f) }) {
			return true
		}
	}
	return false
}

// awaitFree waits, as awaitAny does, until a device has made more frees than it had, and reports whether it has.
func (e *Engine) awaitFree(d *device, were *uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for d.made == *were && e.awaitAny(func(f *pendingFree) bool { return f.segment.device == d && f.inProgress() }) {
	}
	more := d.made != *were
	*were = d.made
	return more
}

// finish waits until frees are made, or put off once more. They must not depend on the caller, which holds e.mu.
func (e *Engine) finish(frees []*pendingFree) {
	for _, f := range frees {
		for f.inProgress() {
			e.settled.Wait()
		}
	}
}

// freeQuiesced makes the pending frees of some devices once quiesce has waited for these devices.
func (e *Engine) freeQuiesced(devices []*device, quiesce func() error) error {
	e.mu.Lock()
	frees := filter(e.pending, func(f *pendingFree) bool { return slices.Contains(devices, f.segment.device) })
	e.mu.Unlock()
	if err := quiesce(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waited(frees, nil)
	e.finish(frees)
	return nil
}

// waitingFrees describes the pending frees for statistics. The caller holds e.mu.
func (e *Engine) waitingFrees() (list []stats.Waiting) {
	for _, f := range e.pending {
		if f.stage != made && (!f.small || f.segment.slab != nil) {
			list = stats.Count(list, "free", f.why, f.size())
		}
	}
	return list
}
