// Package rights records what each client of a control socket is responsible for in a process. It gets events and
// returns what the process must do. It has no clock, and calls no process.
//
// The nouns: a hold stops the process's threads for a client. A client's alignment holds threads back before
// collectives. A tag is paused for each client that has paused it, and stays paused while one of them wants it so. A
// client loses these rights by its own undo, by keeping the pause, or by leaving. A lasting pause stays without the
// client: its rights pass to a client that stands for it (Keep). What the process must then take back is orphaned
// (Orphaned). A client's pause also bars the program itself from taking memory back, even memory that the program had
// paused before (Bars).
package rights

import (
	"iter"
	"maps"
	"slices"
)

// Rest stands beside the tags for memory without a tag that a pause may have taken: NCCL's memory, and the rest, which
// the driver takes. No tag has a zero byte.
const Rest = "\x00"

// Rights are the rights of all clients C of a process. The zero C is a client that has gone. In the zero value no
// client has any rights.
type Rights[C comparable] struct {
	holders []C            // clients that hold up the threads, once each
	aligns  C              // the client for which threads are held back before collectives
	paused  map[string][]C // the clients for which a tag is paused; without any, it is to be resumed
	bars    []Bar[C]
}

// Bar says that the program itself must not take memory back, because a client wants it paused. A client has one at
// most. A bar that was handed out never changes.
type Bar[C comparable] struct {
	Client C
	All    bool                // all tags but Tags
	Tags   map[string]struct{} // without All, those that are barred
}

// Covers reports whether the program must not take back memory of a tag.
func (b Bar[C]) Covers(tag string) bool {
	_, named := b.Tags[tag]
	return named != b.All
}

// with returns a bar that covers these tags, too.
func (b Bar[C]) with(tags iter.Seq[string]) Bar[C] { return b.change(tags, true) }

// without returns a bar that does not cover these tags.
func (b Bar[C]) without(tags iter.Seq[string]) Bar[C] { return b.change(tags, false) }

func (b Bar[C]) change(tags iter.Seq[string], covered bool) Bar[C] {
	named := map[string]struct{}{}
	maps.Copy(named, b.Tags)
	for tag := range tags {
		if covered != b.All {
			named[tag] = struct{}{}
		} else {
			delete(named, tag)
		}
	}
	b.Tags = named
	return b
}

// less returns a bar without what another covers.
func (b Bar[C]) less(other Bar[C]) Bar[C] {
	switch {
	case !other.All:
		return b.without(maps.Keys(other.Tags))
	case b.All: // what the other leaves out
		left := maps.Clone(other.Tags)
		maps.DeleteFunc(left, func(tag string, _ struct{}) bool { return !b.Covers(tag) })
		b.All, b.Tags = false, left
		return b
	}
	named := maps.Clone(b.Tags)
	maps.DeleteFunc(named, func(tag string, _ struct{}) bool { return other.Covers(tag) })
	b.Tags = named
	return b
}

func (b Bar[C]) empty() bool { return !b.All && len(b.Tags) == 0 }

// Orphaned lists what the process must take back.
type Orphaned struct {
	Hold  bool     // the process must end the client's hold
	Align bool     // threads are no longer to be held back
	Due   []string // tags that are to be resumed, the Rest first
}

// Held notes that a client's hold has begun, and reports whether it may go on. It must end if the client has gone or
// already has a hold.
func (r *Rights[C]) Held(c C) bool {
	if c == *new(C) || slices.Contains(r.holders, c) {
		return false
	}
	r.holders = append(r.holders, c)
	return true
}

// Pauses ends the client's hold as its pause begins, and reports whether there was a hold. The caller ends that hold in
// the process when the pause is done.
func (r *Rights[C]) Pauses(c C) bool {
	before := len(r.holders)
	r.holders = slices.DeleteFunc(r.holders, func(h C) bool { return h == c })
	return len(r.holders) < before
}

// Took notes the tags of which a client's pause has paused something.
func (r *Rights[C]) Took(c C, took []string) {
	if r.paused == nil {
		r.paused = map[string][]C{}
	}
	for _, name := range took {
		r.paused[name] = with(r.paused[name], c)
	}
}

func with[C comparable](wanting []C, c C) []C {
	if c == *new(C) || slices.Contains(wanting, c) {
		return wanting
	}
	return append(wanting, c)
}

// Paused notes that a client's pause of a tag, nil for all, is done: the client then also wants what others have taken,
// and bars the program.
func (r *Rights[C]) Paused(c C, tag *string) {
	for name, wanting := range r.paused {
		if tag == nil || *tag == name {
			r.paused[name] = with(wanting, c)
		}
	}
	if tag == nil {
		r.bar(c, func(Bar[C]) Bar[C] { return Bar[C]{Client: c, All: true} })
	} else {
		r.Failed(c, []string{*tag})
	}
}

// Failed notes that a client's pause has failed, and what it has taken nevertheless: it bars the program from that.
func (r *Rights[C]) Failed(c C, took []string) {
	r.bar(c, func(b Bar[C]) Bar[C] { return b.with(slices.Values(took)) })
}

// bar changes the bar of a client, which may have none.
func (r *Rights[C]) bar(c C, change func(Bar[C]) Bar[C]) {
	if c == *new(C) {
		return
	}
	own := Bar[C]{Client: c}
	if i := slices.IndexFunc(r.bars, func(b Bar[C]) bool { return b.Client == c }); i >= 0 {
		own = r.bars[i]
	}
	r.unbar(c)
	if own = change(own); !own.empty() {
		r.bars = append(r.bars, own)
	}
}

// unbar ends the bar of a client.
func (r *Rights[C]) unbar(c C) { r.leave(func(b Bar[C]) bool { return b.Client != c }) }

// leave leaves some bars, and makes a list of its own, because the old one was handed out.
func (r *Rights[C]) leave(which func(Bar[C]) bool) {
	r.bars = slices.DeleteFunc(slices.Clone(r.bars), func(b Bar[C]) bool { return !which(b) })
}

// ResumedAll notes that nothing is paused any longer. Holds go on.
func (r *Rights[C]) ResumedAll() {
	clear(r.paused)
	r.bars = nil
}

// Resumed notes that these tags are no longer paused. Holds go on.
func (r *Rights[C]) Resumed(tags ...string) {
	if len(tags) == 0 {
		return
	}
	for _, tag := range tags {
		delete(r.paused, tag)
	}
	r.bars = slices.Clone(r.bars)
	for i, b := range r.bars {
		r.bars[i] = b.without(slices.Values(tags))
	}
	r.leave(func(b Bar[C]) bool { return !b.empty() })
}

// Align gives a client the right to hold threads back, unless another client has it, and reports whether it did.
func (r *Rights[C]) Align(c C) bool {
	if r.aligns != *new(C) && r.aligns != c {
		return false
	}
	r.aligns = c
	return true
}

// Keep gives what this client has paused to a client that stands for the lasting pause, and ends the responsibility of
// all others for that. The lasting pauses before it, which these clients stand for, lose what it bars. The Rest gets no
// client: a resume alone ends it.
func (r *Rights[C]) Keep(c, stands C, before []C) Orphaned {
	if slices.Contains(r.paused[Rest], c) {
		delete(r.paused, Rest)
	}
	for name, wanting := range r.paused {
		if slices.Contains(wanting, c) {
			r.paused[name] = []C{stands}
		}
	}
	own := Bar[C]{Client: stands}
	if i := slices.IndexFunc(r.bars, func(b Bar[C]) bool { return b.Client == c }); i >= 0 {
		own.All, own.Tags = r.bars[i].All, r.bars[i].Tags
	}
	r.unbar(c)
	for i, b := range r.bars {
		if slices.Contains(before, b.Client) {
			r.bars[i] = b.less(own)
		}
	}
	r.bars = append(r.bars, own)
	r.leave(func(b Bar[C]) bool { return !b.empty() })
	return Orphaned{Align: r.unalign(c)}
}

// Undo ends the client's part in tags that others also want paused. Tags that only this client wants paused are due,
// and stay its own until they are resumed, because an undo may fail.
func (r *Rights[C]) Undo(c C) Orphaned {
	orphaned := Orphaned{Hold: r.Pauses(c), Align: r.unalign(c)}
	for name, wanting := range r.paused {
		if i := slices.Index(wanting, c); i >= 0 && len(wanting) > 1 {
			r.paused[name] = slices.Delete(wanting, i, i+1)
		} else if i >= 0 {
			orphaned.Due = append(orphaned.Due, name)
		}
	}
	slices.Sort(orphaned.Due)
	r.unbar(c)
	r.Failed(c, orphaned.Due)
	return orphaned
}

// Leave takes all rights of a client that has gone.
func (r *Rights[C]) Leave(c C) Orphaned {
	orphaned := r.Undo(c)
	for _, name := range orphaned.Due {
		r.paused[name] = nil
	}
	r.unbar(c)
	return orphaned
}

// Forget takes all that a client wants paused: the memory is back.
func (r *Rights[C]) Forget(c C) {
	for name, wanting := range r.paused {
		if !slices.Contains(wanting, c) {
			continue
		} else if len(wanting) == 1 {
			delete(r.paused, name)
		} else {
			r.paused[name] = slices.DeleteFunc(wanting, func(w C) bool { return w == c })
		}
	}
	r.unbar(c)
}

// Bars lists what the program must not take back.
func (r *Rights[C]) Bars() []Bar[C] { return r.bars }

// Alone lists the tags that only this client wants paused.
func (r *Rights[C]) Alone(c C) (alone []string) {
	for name, wanting := range r.paused {
		if len(wanting) == 1 && wanting[0] == c {
			alone = append(alone, name)
		}
	}
	slices.Sort(alone)
	return alone
}

func (r *Rights[C]) unalign(c C) bool {
	if r.aligns != c {
		return false
	}
	r.aligns = *new(C)
	return true
}

// Due lists the tags that are to be resumed for clients that have gone, the Rest first.
func (r *Rights[C]) Due() (due []string) {
	for name, wanting := range r.paused {
		if len(wanting) == 0 {
			due = append(due, name)
		}
	}
	slices.Sort(due)
	return due
}

// Pending reports whether some client has paused something of a tag, and has neither made it last nor undone it.
func (r *Rights[C]) Pending(tag string) bool { return len(r.paused[tag]) > 0 }

// Holds reports whether threads are held up or held back for a client, with nothing paused for it yet.
func (r *Rights[C]) Holds(c C) bool { return r.aligns == c || slices.Contains(r.holders, c) }

// Has reports whether a client has any rights.
func (r *Rights[C]) Has(c C) bool {
	for _, wanting := range r.paused {
		if slices.Contains(wanting, c) {
			return true
		}
	}
	return r.Holds(c) || slices.ContainsFunc(r.bars, func(b Bar[C]) bool { return b.Client == c })
}
