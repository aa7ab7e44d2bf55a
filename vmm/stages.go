package vmm

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"tms/vmm/cuda"
	"tms/vmm/small"
)

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
