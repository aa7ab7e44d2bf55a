package vmm

import (
	"errors"
	"slices"
	"time"

	"tms/internal/clock"
	"tms/internal/guard"
	"tms/vmm/cuda"
	"tms/vmm/reclaim"
)

// pendingFree is a free that the caller was told is done, and that is still to be made.
type pendingFree struct {
	allocation
	why   reason
	event cuda.Event // of onStream: recorded in the stream at the free
	err   error      // of refused and its kin
}

// reason is what a pending free waits for. It goes from one to another:
//
//	a free while a stream is captured: inCapture --renew--> onDevices --wait--> due --reap--> made
//	a free that follows a stream:      onStream --reap--> due                    |
//	after an error:                    unwaited --renew--> onDevices             +-----> refused --renew--> due
type reason int

const (
	inCapture reason = iota // nothing may wait for the devices while a stream is being captured
	onDevices               // a thread waits until the devices have finished with it
	onStream                // its stream has not come to it
	due                     // nothing uses it: it is to be made
	making
	made
	refused  // by the driver
	unwaited // waiting for what uses it failed
)

// reasons are those that statistics give.
var reasons = [...]string{
	inCapture: "a stream was being captured",
	onDevices: "the devices have not finished with it",
	onStream:  "its stream has not come to it",
	due:       "it is being made",
	making:    "it is being made",
	refused:   "refused: ",
	unwaited:  "refused: ",
}

// Streams come to their frees in any order, and one that never does must not hold up the others: so they are
// asked, not waited for.
const (
	firstLook = 20 * time.Microsecond
	lastLook  = time.Millisecond
)

// patience is for a program that runs ahead of its streams. A stream may also wait for the very thread that
// allocates, so it ends.
const patience = time.Second

// putOff leaves a claimed allocation to be freed later. The caller holds e.mu.
func (e *Engine) putOff(f *pendingFree) {
	e.pending = append(e.pending, f)
	if f.why == onStream {
		e.startReaping()
	}
}

// FreeDeferred has the frees made that a stream capture, or a refusal of the driver, has put off, and gives back what
// else has been refused. It waits for that as long as one of them comes each second, and returns how much succeeded.
// The rest is made as soon as the devices have finished with it, or stays for the next time.
func (e *Engine) FreeDeferred() int {
	e.mu.Lock()
	frees := e.pendingOf(func(f *pendingFree) bool { return f.why != onStream })
	e.mu.Unlock()
	done := e.renew()
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.awaitAny(func(f *pendingFree) bool { return f.why != onStream && f.coming() }) {
	}
	for _, f := range frees {
		if f.why == made {
			done++
		}
	}
	return done
}

// coming tells that a free is made without anybody's doing anything for it.
func (f *pendingFree) coming() bool {
	return f.why == onDevices || f.why == onStream || f.why == due || f.why == making
}

// renew begins to make what was put off before, and returns how much of what else has been refused is back.
func (e *Engine) renew() (back int) {
	back = e.driver.Reclaim.Retry()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.pending {
		switch f.why {
		case refused:
			f.why = due
		case inCapture, unwaited:
			f.why = onDevices
			if d := f.segment.device; !d.waiting {
				d.waiting = true
				go func() { _ = guard.Call(func() error { return e.awaitDevices(d) }) }()
			}
		}
	}
	e.startReaping()
	return back
}

// awaitDevices waits for the devices on behalf of the frees of a device's memory, until there are none that need it. How long
// that takes is the program's affair, so nobody waits for it without bound.
func (e *Engine) awaitDevices(d *device) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { d.waiting = false }()
	for {
		waiting := e.pendingOf(func(f *pendingFree) bool { return f.why == onDevices && f.segment.device == d })
		if len(waiting) == 0 {
			return nil
		}
		e.waited(waiting, e.unlocked(func() error { return e.quiesceUsers(d) }))
	}
}

// waited notes that the devices have finished with frees, or why that is not known. The caller holds e.mu.
func (e *Engine) waited(frees []*pendingFree, err error) {
	for _, f := range frees {
		switch {
		case f.why == onStream || f.why == making || f.why == made: // reap sees, or has seen, to it
		case err == nil:
			f.why = due
		case captureForbids(err):
			f.why = inCapture
		default:
			f.why, f.err = unwaited, err
		}
	}
	e.startReaping()
}

// startReaping has the frees made that are due, or that streams come to. The caller holds e.mu.
func (e *Engine) startReaping() {
	if !e.reaping && len(e.pendingOf(reapable)) > 0 {
		e.reaping = true
		go func() { _ = guard.Call(e.reap) }()
	}
}

func reapable(f *pendingFree) bool { return f.why == due || f.why == onStream }

// reap is the one place where pending frees are made.
func (e *Engine) reap() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.reaping = false }()
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		frees := e.pendingOf(reapable)
		if len(frees) == 0 {
			return nil
		}
		for _, f := range frees {
			if e.makePending(f) {
				pause = firstLook
			}
		}
		e.pending = slices.DeleteFunc(e.pending, func(f *pendingFree) bool { return f.why == made })
		_ = e.unlocked(func() error { clock.Sleep(pause); return nil })
	}
}

// makePending makes a free, unless its stream has not come to it; it returns whether that has changed anything.
func (e *Engine) makePending(f *pendingFree) bool {
	if f.why == onStream {
		err := e.unlocked(func() error { return e.reached(f) })
		if errors.Is(err, cuda.NotReady) {
			return false
		}
		f.why = due
		if err != nil {
			f.why, f.err = unwaited, err
		}
	}
	if f.why == due {
		f.why = making
		if f.err = guard.Call(func() error { return e.drop(f.allocation) }); f.err != nil {
			f.why = refused
		} else {
			f.why = made
			f.segment.device.made++
		}
	}
	e.settled.Broadcast()
	return true
}

// reached returns nil when the stream has come to a free; NotReady: it has not.
func (e *Engine) reached(f *pendingFree) error {
	err := e.driver.With(f.segment.device.context, func() error { return e.driver.EventQuery(f.event) })
	if !errors.Is(err, cuda.NotReady) {
		e.driver.DropEvent(f.event)
	}
	return err
}

// pendingOf lists the pending frees that are meant. The caller holds e.mu.
func (e *Engine) pendingOf(meant func(*pendingFree) bool) (frees []*pendingFree) {
	for _, f := range e.pending {
		if meant(f) {
			frees = append(frees, f)
		}
	}
	return frees
}

// awaitAny waits until one of the frees that are meant is made, or is not meant any more; false: there is none, or
// none has come for too long. The caller holds e.mu.
func (e *Engine) awaitAny(meant func(*pendingFree) bool) bool {
	before := e.pendingOf(meant)
	for start := time.Now(); len(before) > 0 && time.Since(start) < patience; {
		_ = e.unlocked(func() error { clock.Sleep(lastLook / 4); return nil })
		if slices.ContainsFunc(before, func(f *pendingFree) bool { return !meant(f) }) {
			return true
		}
	}
	return false
}

// awaitFree waits until more frees have been made on a device than there were, as awaitAny does, and says whether
// they have.
func (e *Engine) awaitFree(d *device, were *uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for d.made == *were && e.awaitAny(func(f *pendingFree) bool { return f.segment.device == d && f.coming() }) {
	}
	more := d.made != *were
	*were = d.made
	return more
}

// finish waits until pending frees are made, or put off once more. Nothing that they need may depend on the caller.
// It holds e.mu.
func (e *Engine) finish(frees []*pendingFree) {
	for _, f := range frees {
		for f.coming() {
			e.settled.Wait()
		}
	}
}

// freeQuiesced makes the pending frees of some devices once quiesce has waited for these.
func (e *Engine) freeQuiesced(devices []*device, quiesce func() error) error {
	e.mu.Lock()
	frees := e.pendingOf(func(f *pendingFree) bool { return slices.Contains(devices, f.segment.device) })
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
func (e *Engine) waitingFrees() (list []reclaim.Waiting) {
	for _, f := range e.pending {
		if f.why == made || f.small && f.segment.slab == nil {
			continue
		}
		why := reasons[f.why]
		if f.why == refused || f.why == unwaited {
			why += f.err.Error()
		}
		list = reclaim.Count(list, "free", why, f.size())
	}
	return list
}
