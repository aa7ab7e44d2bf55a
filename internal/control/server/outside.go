package server

import (
	"slices"
	"sync"

	"tms/internal/control/rights"
)

// Outside says which memory others keep paused. The program's own resume of that memory waits until they no longer do
// (docs/design/control.md). The socket's thread changes it, and the program's threads read it.
type Outside struct {
	mutex   sync.Mutex
	bars    []outsideBar
	pausing *Task // takes memory at this moment
	resumed bool  // see Resumed
	changed chan struct{}
}

// outsideBar is what one client keeps paused.
type outsideBar struct {
	rights.Bar[*connection]
	words string // who that is
	ended bool   // a signal has asked the program to end: see Release
}

// Covers returns who keeps memory of a tag paused, in words for the program, or "".
func (o *Outside) Covers(tag string) string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if t := o.pausing; t != nil && (t.Tag == nil || *t.Tag == tag) {
		return t.words
	}
	for i := range o.bars {
		if b := &o.bars[i]; !b.ended && b.Covers(tag) {
			return b.words
		}
	}
	return ""
}

// Any returns who keeps anything paused, or "".
func (o *Outside) Any() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.pausing != nil {
		return o.pausing.words
	}
	for _, b := range o.bars {
		if !b.ended {
			return b.words
		}
	}
	return ""
}

// Alone reports whether no pause is there but that which takes memory now.
func (o *Outside) Alone() bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return len(o.bars) == 0
}

// Changed returns a channel that is closed when others begin or end to keep something paused.
func (o *Outside) Changed() <-chan struct{} {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}

// Release lets the program resume whatever others keep paused now: a signal has asked it to end.
func (o *Outside) Release() {
	o.change(func() {
		for i := range o.bars {
			o.bars[i].ended = true
		}
	})
}

// Resumed notes that the program has resumed what Release has left to it.
func (o *Outside) Resumed() { o.change(func() { o.resumed = true }) }

// takeResumed lists the clients to which Resumed applies, once.
func (o *Outside) takeResumed() (of []*connection) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for _, b := range o.bars {
		if o.resumed && b.ended {
			of = append(of, b.Client)
		}
	}
	o.resumed = false
	return of
}

// begins notes which task is about to take memory, or nil. The publish after the task ends that.
func (o *Outside) begins(t *Task) { o.change(func() { o.pausing = t }) }

// publish replaces what others keep paused by the rights of clients. done says that no task takes memory any longer.
func (o *Outside) publish(bars []rights.Bar[*connection], done bool) {
	o.change(func() {
		before := o.bars
		o.bars = nil
		if done {
			o.pausing = nil
		}
		for _, b := range bars {
			ended := slices.ContainsFunc(before, func(was outsideBar) bool { return was.Client == b.Client && was.ended })
			o.bars = append(o.bars, outsideBar{b, b.Client.words(), ended})
		}
	})
}

func (o *Outside) change(do func()) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	do()
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}
