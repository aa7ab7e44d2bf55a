package vmm

import (
	"errors"
	"slices"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/guard"
	"tms/vmm/cuda"
)

// firstLook is too short to be noticed. Streams reach their frees in any order, and a stream that never does must not
// hold up the others. So the engine polls the streams.
const firstLook = 20 * time.Microsecond

// patience is how long to wait for a program that runs ahead of its streams. It is bounded, because a stream may wait
// for the very thread that allocates.
const patience = time.Second

// freeQuiesced makes the pending frees of some devices once quiesce has waited for these devices. With deferred, it
// then does what FreeDeferred does.
func (e *Engine) freeQuiesced(devices []*device, deferred bool, quiesce func() error) error {
	e.mu.Lock()
	frees := e.pendingOf(func(d *device) bool { return slices.Contains(devices, d) })
	e.mu.Unlock()
	if err := quiesce(); err != nil {
		return err
	}
	e.mu.Lock()
	e.waited(frees, nil)
	e.finish(frees)
	e.mu.Unlock()
	if deferred {
		e.FreeDeferred()
	}
	return nil
}

// pendingOf lists the pending frees of devices, some of them twice if others work on them. The caller holds e.mu, which
// is released at times.
func (e *Engine) pendingOf(of func(*device) bool) (frees []*pendingFree) {
	var p pace
	add := func(f *pendingFree) {
		if of(f.segment.device) {
			frees = append(frees, f)
		}
	}
	for l := range e.pending.lines {
		p.yield(e, 1)
		l.waiting.visit(e, &p, add)
	}
	for _, at := range []stage{unwaited, onDevices, idle, refused, due} { // a free goes on in this order, or is put off
		e.pending.at[at].visit(e, &p, add)
	}
	return frees
}

// waited notes that the devices have finished with frees, or why that is unknown. The caller holds e.mu.
func (e *Engine) waited(frees []*pendingFree, err error) {
	var p pace
	for _, f := range frees {
		p.yield(e, 1)
		switch {
		case f.stage == made || f.stage == taken || f.stage == due || f.stage == refused:
		case err == nil:
			e.advance(f, due, "it is about to be made")
		case f.stage == onStream || f.stage == idle: // its stream decides
		case errors.Is(err, ErrCapturing):
			e.advance(f, unwaited, captured)
		default:
			e.advance(f, unwaited, refusedPrefix+err.Error())
		}
	}
	e.settled.Broadcast()
}

// finish waits until frees are made, or put off once more. They must not depend on the caller, which holds e.mu.
func (e *Engine) finish(frees []*pendingFree) {
	var p pace
	for _, f := range frees {
		p.yield(e, 1)
		for f.stage.inProgress() {
			e.settled.Wait()
		}
	}
}

// FreeDeferred makes the frees that a capture or a refusal by the driver has put off, and tries again to give back
// other things that the driver has refused. It waits while at least one of these frees is made each second. The others
// are made when the devices have finished with them, or stay for the next call.
func (e *Engine) FreeDeferred() {
	e.renew()
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.pending
	for e.awaitProgress(func() bool { return p.at[onDevices].length+p.at[due].length > 0 }) {
	}
}

// renew begins to make the frees that were put off, and returns how many of the other refused things were given back.
func (e *Engine) renew() (back int) {
	back = e.driver.Reclaim.Retry()
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.pending
	var walked pace
	for n := p.at[refused].length; n > 0 && p.at[refused].first != nil; n-- {
		walked.yield(e, 1)
		e.advance(p.at[refused].first, due, "it is about to be made")
	}
	for n := p.at[unwaited].length; n > 0; n-- {
		walked.yield(e, 1)
		f := p.at[unwaited].first
		if f == nil {
			break
		}
		e.advance(f, onDevices, inUse)
		if d := f.segment.device; !d.waiting {
			d.waiting = true
			go func() { _ = guard.Call(func() error { return e.awaitDevices(d) }) }()
		}
	}
	return back
}

// awaitDevices waits for the devices on behalf of a device's frees, until no free needs it. The program decides how
// long that takes, so no caller waits for its end without bound.
func (e *Engine) awaitDevices(d *device) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { d.waiting = false }()
	for {
		var frees []*pendingFree
		var p pace
		e.pending.at[onDevices].visit(e, &p, func(f *pendingFree) {
			if f.segment.device == d {
				frees = append(frees, f)
			}
		})
		if len(frees) == 0 {
			return nil
		}
		e.waited(frees, e.unlocked(func() error { return e.contexts.Finish(d.ordinal) }))
	}
}

// awaitFrees takes memory of a device that was short, with err, as frees are made; made is how many there had been at
// the try. It gives up after patience without progress.
func (e *Engine) awaitFrees(d *device, take func() error, made *uint64, err error) error {
	defer e.want(d)()
	if e.renew() > 0 {
		err = take()
	}
	for more := true; more && isShort(err); {
		e.mu.Lock()
		for d.made == *made && e.awaitProgress(func() bool { return d.made == *made && d.progressing > 0 }) {
		}
		more = d.made != *made
		*made = d.made
		e.mu.Unlock()
		if more {
			err = take()
		}
	}
	return err
}

// want has streams polled at once, and gives back what is idle, until the function that it returns is called.
func (e *Engine) want(d *device) (end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d.wanting++
	e.pending.wanting++
	e.giveBackIdle(func(of *device, _ *pendingFree) (uint64, bool) { return 0, of == d })
	e.pending.reaper.Wake()
	e.startReaping(d)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		d.wanting--
		e.pending.wanting--
	}
}

// awaitProgress waits while left reports frees, until a free in progress is made or put off. It returns false if no
// free is left, or after patience without progress. The caller holds e.mu.
func (e *Engine) awaitProgress(left func() bool) bool {
	before := e.pending.left
	for start := time.Now(); left() && time.Since(start) < patience; {
		_ = e.unlocked(func() error { time.Sleep(250 * time.Microsecond); return nil })
		if e.pending.left != before {
			return true
		}
	}
	return false
}

// reap is the one place that makes pending frees.
func (e *Engine) reap() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.pending
	defer p.reaper.Ended()
	wait := backoff.Backoff{Next: firstLook, Most: time.Millisecond}
	for p.at[due].length > 0 || e.looks() {
		before := p.left

		// What streams have reached is due, and so is memory that was idle for long, or that a caller lacks.
		e.pollAll()
		e.dropUnused()
		since := time.Now().Add(-idleMapped)
		e.giveBackIdle(func(d *device, f *pendingFree) (keep uint64, may bool) {
			if d.wanting > 0 {
				return 0, true
			}
			return d.ordered.keep, f.since.Before(since)
		})
		for n := p.at[due].length; n > 0 && p.at[due].first != nil; n-- {
			f := p.at[due].first
			f.why = "it is being made"
			if err := guard.Call(func() error { return e.drop(f.allocation) }); err != nil {
				e.advance(f, refused, refusedPrefix+err.Error())
			} else {
				e.advance(f, made, "")
			}
		}
		if p.left != before {
			wait.Next = firstLook
			e.settled.Broadcast()
		}
		if p.at[due].length > 0 {
			continue
		}
		pause := idleMapped
		if p.wanting > 0 {
			pause = wait.Next
			wait.Next = min(2*wait.Next, wait.Most)
		}
		if !e.looks() {
			break
		}
		_ = e.unlocked(func() error { p.reaper.Sleep(pause); return nil })
	}
	return nil
}

// looks reports whether streams are to be polled, or idle memory is to be given back in a while. The caller holds e.mu.
func (e *Engine) looks() bool {
	if e.looksFor(nil) {
		return true
	}
	for _, d := range e.devices {
		if e.looksFor(d) {
			return true
		}
	}
	return false
}

// pollAll notes what streams have reached. The caller holds e.mu, which is released for driver calls.
func (e *Engine) pollAll() {
	for l := range e.pending.lines { // a map may change while it is gone through
		for f := l.waiting.first; f != nil; f = l.waiting.first {
			if !e.poll(f) {
				break
			}
		}
	}
}

// poll asks whether a stream has reached the first free of its line, and reports whether anything has changed.
func (e *Engine) poll(f *pendingFree) bool {
	l, m := f.line, f.mark
	m.users++
	err := e.unlocked(func() error {
		return e.driver.With(l.device.context, func() error { return e.driver.EventQuery(m.event) })
	})
	defer l.unmark(m)
	switch {
	case f.mark != m: // another look has moved it on during the query
	case errors.Is(err, cuda.NotReady):
		return false
	case err != nil:
		e.advance(f, unwaited, refusedPrefix+err.Error())
	case f.reusable() && l.device.wanting == 0:
		e.advance(f, idle, "")
	default:
		e.advance(f, due, "it is about to be made")
	}
	return true
}

// dropUnused destroys events that no line uses again. The caller holds e.mu, which is released for driver calls.
func (e *Engine) dropUnused() {
	for _, d := range e.devices {
		events := d.unused
		if d.unused = nil; len(events) == 0 {
			continue
		}
		_ = e.unlocked(func() error {
			for _, event := range events {
				e.driver.DropEvent(event)
			}
			return nil
		})
	}
}

// giveBackIdle makes the frees of idle memory that may be made, until keep bytes of a device's memory for stream order
// are left. The caller holds e.mu.
func (e *Engine) giveBackIdle(keeps func(*device, *pendingFree) (keep uint64, may bool)) {
	given := map[*device]uint64{}
	var p pace
	e.pending.at[idle].visit(e, &p, func(f *pendingFree) {
		d := f.segment.device
		if keep, may := keeps(d, f); may && d.ordered.reserved-min(given[d], d.ordered.reserved) > keep {
			given[d] += f.shape.bytes
			e.advance(f, due, "it is about to be made")
		}
	})
}

// visit calls f, which may take it out of the list, with each free of a list. The caller holds e.mu, which is released
// at times: visit begins again if it has lost its place.
func (l *freeList) visit(e *Engine, p *pace, f func(*pendingFree)) {
	for at := l.first; at != nil; {
		next, place := at.next, uint64(0)
		if next != nil {
			place = next.place
		}
		f(at)
		if p.yield(e, 1) && next != nil && (next.list != l || next.place != place) {
			next = l.first
		}
		at = next
	}
}

// isShort reports whether an allocation may succeed once other memory of the process is free.
func isShort(err error) bool {
	return errors.Is(err, cuda.OutOfMemory) || errors.Is(err, ErrMargin) || errors.Is(err, ErrLimit)
}
