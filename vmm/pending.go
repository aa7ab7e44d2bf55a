package vmm

import (
	"cmp"
	"errors"
	"iter"
	"slices"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/small"
	"tms/vmm/stats"
)

// A free is pending when its caller believes it done while the memory is still there. The rest of the
// engine puts a free off (putOff), has frees made when it has waited for their devices (freeQuiesced) or at once
// (FreeDeferred), and waits for memory that they give back (awaitFrees). Two threads make what is put off: one waits
// for a device (awaitDevices), the other asks the streams and the driver (reap).

// pendingFree is a free that its caller believes done, and that is still to come.
type pendingFree struct {
	allocation
	stage      stage
	why        string       // the free still waits, for statistics
	next, prev *pendingFree // in list
	list       *freeList    // the list that has it, or nil
	place      uint64       // in the list: no other free has had the same
	freedInOrder
}

// stage is how far a pending free is:
//
//	unwaited --renew-->  onDevices --awaitDevices--> due --reap--> made
//	                     onStream ---reached--> idle ---> due --reap--> refused --renew--> due
//	                        |                    |
//	                        +------> taken <-----+    by an allocation in stream order (ordered.go)
type stage int

const (
	unwaited  stage = iota // a capture forbids waiting for the devices, or the wait failed
	onDevices              // a thread waits until the devices have finished with it
	onStream               // its stream has not reached it, as far as is known
	idle                   // its stream has reached it; the memory is there for allocations in stream order
	due                    // it is to be made now
	refused                // by the driver
	made
	taken // the memory is in use again
	stages
)

// freeList is a list of pending frees, the oldest first.
type freeList struct {
	first, last *pendingFree
	length      int
	entered     uint64 // frees so far
}

// add puts a free at the end.
func (l *freeList) add(f *pendingFree) {
	l.entered++
	f.list, f.prev, f.place = l, l.last, l.entered
	if l.last == nil {
		l.first = f
	} else {
		l.last.next = f
	}
	l.last = f
	l.length++
}

func (l *freeList) remove(f *pendingFree) {
	if f.prev == nil {
		l.first = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next == nil {
		l.last = f.prev
	} else {
		f.next.prev = f.prev
	}
	f.list, f.next, f.prev = nil, nil, nil
	l.length--
}

// pendingFrees has the pending frees by their stage; those on a stream are in its line.
type pendingFrees struct {
	at      [stages]freeList
	lines   map[*line]bool // that are not empty
	plain   int            // frees in lines whose memory cannot be used again
	left    uint64         // frees that have left a stage in which they were in progress
	reaping bool           // a thread makes the frees that are due, and looks after lines and idle memory
	wanting int            // callers for whom memory is short: streams are then polled at once
	wake    chan struct{}  // ends the pause of that thread
}

// all goes through the pending frees, which must not change during the walk.
func (p *pendingFrees) all() iter.Seq[*pendingFree] {
	return func(yield func(*pendingFree) bool) {
		for i := range p.at {
			for f := p.at[i].first; f != nil; f = f.next {
				if !yield(f) {
					return
				}
			}
		}
		for l := range p.lines {
			for f := l.waiting.first; f != nil; f = f.next {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// inProgress reports whether a free will be made without a further call.
func (s stage) inProgress() bool { return s == onDevices || s == onStream || s == due }

const (
	captured      = "a stream was being captured"
	inUse         = "the devices have not finished with it"
	streamBehind  = "its stream has not come to it"
	refusedPrefix = "refused: "
)

// freedInOrder is what a free has by a stream.
type freedInOrder struct {
	line  *line
	mark  *mark
	since time.Time // it is idle
	shape shape
	bin   *bin // of a shelf, or nil
	index int  // in the bin
}

// mark is an event behind the work that a stream had at a free.
type mark struct {
	event cuda.Event
	users int // frees, and a query
}

// line has the frees of a tag that wait for one stream, in its order, and events to use again.
type line struct {
	device  *device
	tag     *tag
	order   order
	waiting freeList
	shelf
	spare []*mark
}

const (
	sparesMost = 64
	linesMost  = 256 // of a tag, empty ones included
)

// lineOf returns the line of a stream. The caller holds e.mu.
func (d *device) lineOf(t *tag, o order) *line {
	l := t.line(o)
	if l == nil {
		if len(t.lines) >= linesMost {
			d.dropLines(t)
		}
		l = &line{device: d, tag: t, order: o}
		t.lines[o] = l
	}
	return l
}

// dropLines forgets the empty lines of a tag.
func (d *device) dropLines(t *tag) {
	for o, l := range t.lines {
		if l.waiting.length == 0 {
			delete(t.lines, o)
			for _, m := range l.spare {
				d.unused = append(d.unused, m.event)
			}
			l.spare = nil
		}
	}
	t.recent = nil
}

// line returns the line that lineOf has made, or nil if there is none. Most often it is the last that was looked for.
func (t *tag) line(o order) *line {
	if t.recent == nil || t.recent.order != o {
		t.recent = t.lines[o]
	}
	return t.recent
}

// unmark gives up a use of a mark of a line. The caller holds e.mu.
func (l *line) unmark(m *mark) {
	if m.users--; m.users > 0 {
		return
	}
	if len(l.spare) < sparesMost && l.tag.line(l.order) == l {
		l.spare = append(l.spare, m)
	} else {
		l.device.unused = append(l.device.unused, m.event)
	}
}

// shape is what can replace a freed allocation: memory of the same size, and for a part of a slab of the same policy,
// which is never the zero one.
type shape struct {
	bytes uint64 // whole granules, or units of a slab
	policy
}

// shelf finds freed memory by its size.
type shelf struct{ bins []*bin } // by size, ascending

// bin has the freed memory of one shape.
type bin struct {
	shape
	frees []*pendingFree
}

// emptyMost is how many bins a shelf may have and still keep one that becomes empty: a program's next step frees memory
// of the same shapes.
const emptyMost = 16

func compareBytes(b *bin, bytes uint64) int { return cmp.Compare(b.bytes, bytes) }

func (s *shelf) put(f *pendingFree) {
	at, _ := slices.BinarySearchFunc(s.bins, f.shape.bytes, compareBytes)
	for at < len(s.bins) && s.bins[at].bytes == f.shape.bytes && s.bins[at].shape != f.shape {
		at++
	}
	if at == len(s.bins) || s.bins[at].shape != f.shape {
		s.bins = slices.Insert(s.bins, at, &bin{shape: f.shape})
	}
	f.bin = s.bins[at]
	f.index = len(f.bin.frees)
	f.bin.frees = append(f.bin.frees, f)
}

func (s *shelf) take(f *pendingFree) {
	b := f.bin
	last := len(b.frees) - 1
	b.frees[f.index], b.frees[last].index = b.frees[last], f.index
	b.frees[last] = nil
	b.frees = b.frees[:last]
	if f.bin = nil; last == 0 && len(s.bins) > emptyMost {
		s.bins = slices.DeleteFunc(s.bins, func(b *bin) bool { return len(b.frees) == 0 })
	}
}

// find returns freed memory that can be used now: of the wanted policy, and of a size from the wanted one to most
// bytes. The latest is the likeliest to be in the device's cache.
func (s *shelf) find(wanted shape, most uint64) *pendingFree {
	at, _ := slices.BinarySearchFunc(s.bins, wanted.bytes, compareBytes)
	for ; at < len(s.bins) && s.bins[at].bytes <= most; at++ {
		if s.bins[at].policy != wanted.policy {
			continue
		}
		if f := usable(s.bins[at].frees); f != nil {
			return f
		}
	}
	return nil
}

// usable returns the last of a few frees whose memory no other thread works on.
func usable(list []*pendingFree) *pendingFree {
	for i := len(list) - 1; i >= 0 && i >= len(list)-smallTries; i-- {
		s := list[i].segment
		x := s.extent
		if x != nil && x.owner == nobody && x.step == accessible && s.state == active &&
			(s.owner == aFree) != list[i].small {
			return list[i]
		}
	}
	return nil
}

// reusable reports whether the memory of a free can serve allocations in stream order. It cannot where others have, or
// may ask for, the memory itself.
func (f *pendingFree) reusable() bool { return f.shape.bytes > 0 }

func shapeOf(a allocation) shape {
	s := a.segment
	x := s.extent
	if !s.ordered || s.shared != 0 || x == nil || x.named || x.exported || len(x.exports) > 0 {
		return shape{}
	}
	if a.small {
		return shape{small.Round(s.slab.Size(a.offset)), s.policy}
	}
	return shape{bytes: s.length()}
}

// putOff frees a claimed allocation later. The caller holds e.mu.
func (e *Engine) putOff(f pendingFree) {
	stage := f.stage
	f.stage = made
	e.advance(&f, stage, f.why)
}

// advance puts a free into another stage. The caller holds e.mu.
func (e *Engine) advance(f *pendingFree, to stage, why string) {
	d := f.segment.device
	if f.stage.inProgress() {
		e.pending.left++
		d.progressing--
	}

	// The free leaves the list of its stage, and the shelf where allocations find it.
	if f.list != nil {
		f.list.remove(f)
		switch {
		case f.stage == idle:
			f.segment.tag.idle.take(f)
		case f.stage == onStream && f.reusable():
			f.line.take(f)
		case f.stage == onStream:
			e.pending.plain--
		}
		if f.stage == onStream {
			if f.line.waiting.length == 0 {
				delete(e.pending.lines, f.line)
			}
			f.line.unmark(f.mark)
			f.mark = nil
		}
	}

	// It enters those of the next.
	if f.stage, f.why = to, why; to.inProgress() {
		d.progressing++
	}
	switch to {
	case made:
		d.made++
	case taken:
	case onStream:
		if f.line.waiting.add(f); f.line.waiting.length == 1 {
			e.pending.lines[f.line] = true
		}
		if f.reusable() {
			f.line.put(f)
		} else {
			e.pending.plain++
		}
	case idle:
		e.pending.at[idle].add(f)
		f.since = time.Now()
		f.segment.tag.idle.put(f)
	default:
		e.pending.at[to].add(f)
	}
	e.startReaping(d)
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

// firstLook is too short to be noticed. Streams reach their frees in any order, and a stream that never does must not
// hold up the others. So the engine polls the streams.
const firstLook = 20 * time.Microsecond

// patience is how long to wait for a program that runs ahead of its streams. It is bounded, because a stream may wait
// for the very thread that allocates.
const patience = time.Second

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
		e.waited(frees, e.unlocked(func() error { return e.quiesce(d) }))
	}
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

// startReaping starts a thread for the frees that are due, or wait for streams, or wakes it, after a change on a
// device. The caller holds e.mu.
func (e *Engine) startReaping(d *device) {
	p := &e.pending
	if p.reaping {
		if p.at[due].length == 1 {
			p.wakeUp()
		}
	} else if p.at[due].length > 0 || e.looksFor(d) {
		p.reaping = true
		go func() { _ = guard.Call(e.reap) }()
	}
}

// reap is the one place that makes pending frees.
func (e *Engine) reap() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.pending
	defer func() { p.reaping = false }()
	wait := backoff.Backoff{Next: firstLook, Most: time.Millisecond}
	for p.at[due].length > 0 || e.looks() {
		before := p.left
		e.look()
		for n := p.at[due].length; n > 0 && p.at[due].first != nil; n-- {
			e.makePending(p.at[due].first)
		}
		if p.left != before {
			wait.Next = firstLook
			e.settled.Broadcast()
		}
		if p.at[due].length > 0 {
			continue
		}
		pause := keptIdle
		if p.wanting > 0 {
			pause = wait.Next
			wait.Next = min(2*wait.Next, wait.Most)
		}
		if !e.looks() {
			break
		}
		_ = e.unlocked(func() error { p.await(pause); return nil })
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

// looksFor is looks for the sake of one device, and of frees whose device may be forgotten by now.
func (e *Engine) looksFor(d *device) bool {
	p := &e.pending
	if len(p.lines) == 0 && p.at[idle].length == 0 && len(e.offers) == 0 {
		return false
	}
	return p.plain > 0 || d != nil && (d.wanting > 0 || d.ordered.reserved > d.ordered.keep)
}

// look finds out what streams have reached, and decides which idle memory is to be given back. The caller holds e.mu,
// which is released for driver calls.
func (e *Engine) look() {
	e.pollAll()
	e.dropUnused()
	since := time.Now().Add(-keptIdle)
	e.giveBackIdle(func(d *device, f *pendingFree) (keep uint64, may bool) {
		if d.wanting > 0 {
			return 0, true
		}
		return d.ordered.keep, f.since.Before(since)
	})
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

// wakeUp has the thread that reaps look now.
func (p *pendingFrees) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default: // it has been told
	}
}

// await pauses the reaping thread until another thread wakes it.
func (p *pendingFrees) await(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.wake:
	}
}

// makePending makes a free that is due.
func (e *Engine) makePending(f *pendingFree) {
	f.why = "it is being made"
	if err := guard.Call(func() error { return e.drop(f.allocation) }); err != nil {
		e.advance(f, refused, refusedPrefix+err.Error())
	} else {
		e.advance(f, made, "")
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
	e.pending.wakeUp()
	e.startReaping(d)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		d.wanting--
		e.pending.wanting--
	}
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

// waitingFrees describes the pending frees for statistics. The caller holds e.mu, which is released at times.
func (e *Engine) waitingFrees() (list []stats.Waiting) {
	seen := map[*pendingFree]bool{}
	var p pace
	for _, f := range e.pendingOf(func(*device) bool { return true }) {
		p.yield(e, 1)
		if f.stage != idle && f.list != nil && !seen[f] && (!f.small || f.segment.slab != nil) {
			seen[f] = true
			list = stats.Count(list, "free", f.why, f.size())
		}
	}
	return list
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

// putOffOnStream frees a claimed allocation once the stream of a line has reached a mark. The caller holds e.mu.
func (e *Engine) putOffOnStream(a allocation, l *line, m *mark) {
	// Since the look, it was freed and allocated, or the line dropped
	if l.tag != a.segment.tag || l.tag.line(l.order) != l {
		l = a.segment.device.lineOf(a.segment.tag, l.order)
	}
	e.putOff(pendingFree{allocation: a, stage: onStream, why: streamBehind,
		freedInOrder: freedInOrder{line: l, mark: m, shape: shapeOf(a)}})
}
