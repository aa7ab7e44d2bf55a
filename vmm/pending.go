package vmm

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"tms/vmm/cuda"
	"tms/vmm/reclaim"
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
	lines   map[*line]bool  // that are not empty
	plain   int             // frees in lines whose memory cannot be used again
	left    uint64          // frees that have left a stage in which they were in progress
	reaper  *reclaim.Thread // (reap) makes the frees that are due, and looks after lines and idle memory
	wanting int             // callers for whom memory is short: streams are then polled at once
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
	order   cuda.Order
	waiting freeList
	shelf
	spare []*mark
}

const (
	sparesMost = 64
	linesMost  = 256 // of a tag, empty ones included
)

// lineOf returns the line of a stream. The caller holds e.mu.
func (d *device) lineOf(t *tag, o cuda.Order) *line {
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
func (t *tag) line(o cuda.Order) *line {
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

// reusable reports whether the memory of a free can serve allocations in stream order. It cannot where others have, or
// may ask for, the memory itself.
func (f *pendingFree) reusable() bool { return f.shape.bytes > 0 }

func shapeOf(a allocation) shape {
	s := a.segment
	x := s.extent
	if !s.ordered || s.shared != 0 || x == nil || x.named || x.Exported || len(x.exports) > 0 {
		return shape{}
	}
	if a.small {
		return shape{small.Round(s.slab.Size(a.offset)), s.policy}
	}
	return shape{bytes: s.span.Bytes()}
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

// startReaping starts a thread for the frees that are due, or wait for streams, or wakes it, after a change on a
// device. The caller holds e.mu.
func (e *Engine) startReaping(d *device) {
	p := &e.pending
	if p.reaper.Runs() {
		if p.at[due].length == 1 {
			p.reaper.Wake()
		}
	} else if p.at[due].length > 0 || e.looksFor(d) {
		p.reaper.Start()
	}
}

// looksFor is looks for the sake of one device, and of frees whose device may be forgotten by now.
func (e *Engine) looksFor(d *device) bool {
	p := &e.pending
	if len(p.lines) == 0 && p.at[idle].length == 0 && len(e.offers) == 0 {
		return false
	}
	return p.plain > 0 || d != nil && (d.wanting > 0 || d.ordered.reserved > d.ordered.keep)
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

// putOffOnStream frees a claimed allocation once the stream of a line has reached a mark. The caller holds e.mu.
func (e *Engine) putOffOnStream(a allocation, l *line, m *mark) {
	// Since the look, it was freed and allocated, or the line dropped
	if l.tag != a.segment.tag || l.tag.line(l.order) != l {
		l = a.segment.device.lineOf(a.segment.tag, l.order)
	}
	e.putOff(pendingFree{allocation: a, stage: onStream, why: streamBehind,
		freedInOrder: freedInOrder{line: l, mark: m, shape: shapeOf(a)}})
}
