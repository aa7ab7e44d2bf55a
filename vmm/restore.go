package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// gather plans extents for the segments that have none: one for neighbours of a tag, up to limit bytes. It returns the
// size of all extents.
func (e *Engine) gather(batches []*batch, limit uint64) (bytes uint64) {
	var p pace
	for _, b := range batches {
		b.extents = nil
		var x *extent // the last
		e.mu.Lock()
		for n, s := range b.segments {
			p.yield(e, 1)
			switch {
			case x != nil && s.extent == x:
				continue
			case s.extent != nil:
				x = s.extent
			case n > 0 && b.segments[n-1].extent == nil && s.follows(b.segments[n-1]) && x.size+s.length() <= limit:
				x.add(s)
				continue
			default:
				x = newExtent(s)
				x.owner = aTransition
			}
			b.extents = append(b.extents, x)
		}
		shared := b.device.shared
		e.mu.Unlock()
		if !e.process.CanCompact() {
			b.extents = e.bound(b.device, b.extents, shared)
		}
		for _, x := range b.extents {
			b.moved += x.size
		}
		bytes += b.moved
	}
	return bytes
}

// follows reports whether a segment can share an extent with the one before it. Slack can later be joined only within
// one range, and a segment that other processes open must stand alone (share.go).
func (s *segment) follows(last *segment) bool {
	return s.span.SameRange(last.span) && s.address == last.address+uintptr(last.length()) &&
		!s.isUserMapped() && !last.isUserMapped() && s.shared == 0 && last.shared == 0
}

// sharedPart is the part of a device's memory that lies at most in extents that segments share, without a gate. So no
// more than that can ever be slack.
const sharedPart = 16

// bound divides extents that have no memory yet, where a device would otherwise have too much memory in shared extents.
// has is the bytes that are in shared extents already.
//
// Each handle that is saved makes the bytes of a segment depend on its neighbours. So the smallest segments share
// first, also where larger ones lie between them.
func (e *Engine) bound(d *device, extents []*extent, has uint64) (bounded []*extent) {
	left := d.total/sharedPart - min(d.total/sharedPart, has)
	var all []*segment          // of the extents that may be divided, one after the other
	pairs := map[uint64][]int{} // of neighbours, by the size of the larger: where the second is in all
	dividable := func(x *extent) bool { return x.step == none && len(x.segments) > 1 }
	for _, x := range filter(extents, dividable) {
		for n, s := range x.segments {
			if n > 0 {
				larger := max(x.segments[n-1].length(), s.length())
				pairs[larger] = append(pairs[larger], len(all))
			}
			all = append(all, s)
		}
	}
	shares, joined := make([]bool, len(all)), make([]bool, len(all)) // an extent; that of the one before
	for _, size := range slices.Sorted(maps.Keys(pairs)) {
		for _, at := range pairs[size] {
			cost := uint64(0)
			for _, i := range []int{at - 1, at} {
				if !shares[i] {
					cost += all[i].length()
				}
			}
			if cost <= left {
				left -= cost
				shares[at-1], shares[at], joined[at] = true, true, true
			}
		}
	}
	var p pace
	at := 0
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range extents {
		p.yield(e, len(x.segments))
		if !dividable(x) {
			bounded = append(bounded, x)
			continue
		}
		for range x.segments {
			if joined[at] {
				bounded[len(bounded)-1].add(all[at])
			} else {
				part := newExtent(all[at])
				part.owner = aTransition
				bounded = append(bounded, part)
			}
			at++
		}
	}
	return bounded
}

// resume is the work of a resume: it restores all batches, or none.
func (e *Engine) resume(batches []*batch, o *operation) error {
	if err := guard.All(batches, func(b *batch) error { return e.restore(b, o) }); err != nil {
		for _, b := range batches {
			for _, x := range b.extents {
				if x.segments[0].outcome.state == active { // makeRoom
					continue
				}
				// A second failure leaves a step in place; the extent records that, and the next resume, pause or free
				// goes on from there.
				_ = x.undo()
			}
		}
		return err
	}
	for _, b := range batches {
		for _, s := range b.segments {
			if s.outcome.state == active { // makeRoom
				continue
			}
			s.outcome.state, s.outcome.held = active, false
			if s.contents != nil && !e.retains(s, o) {
				o.discarded.add(s.contents, s.prompt)
				s.contents.Discard()
				s.outcome.saved = saved{}
			}
		}
	}
	return nil
}

// retains reports whether a resume keeps a segment's contents.
func (e *Engine) retains(s *segment, o *operation) bool {
	return (o.RetainBackup || s.incremental) && s.contents.Store() == e.host && s.backup != BackupNone
}

// restore gives a device's segments their memory. The contents of each begin to come back as soon as it is mapped,
// while the driver still scrubs memory for the next.
func (e *Engine) restore(b *batch, o *operation) (err error) {
	e.refreshUsers(b.device)
	total := uint64(0)
	for _, s := range b.segments {
		total += s.back().saved.Bytes()
	}
	b.progress.total.Store(total)
	var ends []func() // of mappings for contents alone
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	loaders := map[store.Store]store.Loader{}
	wait := func() (first error) {
		for at, loader := range loaders {
			delete(loaders, at)
			first = cmp.Or(first, loader.Wait())
		}
		return first
	}
	defer func() { _ = wait() }() // also after a panic

	// What waits in memory of the same device comes first: it can make room for the rest.
	elsewhere := func(x *extent) bool { return !x.waitsHere() }
	for _, x := range slices.Concat(filter(b.extents, (*extent).waitsHere), filter(b.extents, elsewhere)) {
		err = x.create()
		if errors.Is(err, cuda.OutOfMemory) && len(b.back) > 0 {
			if err = e.makeRoom(b, o, loaders); err == nil {
				err = x.create()
			}
		}
		if errors.Is(err, cuda.OutOfMemory) {
			err = e.shortageOf(b, err)
		}
		if err == nil {
			err = x.attach()
		}
		if s := x.segments[0]; err == nil && !s.accessible() {
			var address uintptr
			var end func()
			if address, end, err = x.aside(); err == nil {
				s.outcome.aside, ends = address, append(ends, end)
			}
		}
		if err != nil {
			break
		}
		for _, s := range x.segments {
			if s.contents == nil || !s.current {
				continue
			}
			store := s.contents.Store()
			if loaders[store] == nil {
				loaders[store] = store.Load(b.job)
			}
			loaders[store].Add(s.reachable(), s.contents)
		}
		if x.waitsHere() {
			b.back = append(b.back, x)
		}
	}

	// The contents come back, as far as they have not while the driver worked.
	defer o.spent.copyingSince(time.Now())
	waited := wait()
	if lost, is := errors.AsType[*store.Lost](waited); is {
		for _, s := range b.segments {
			if lost.Address-s.reachable().Address < uintptr(s.length()) {
				waited = fmt.Errorf("tag %q, %d bytes at %#x: %w", s.tag.name, s.size, s.address, waited)
				break
			}
		}
	}
	if err == nil {
		err = waited
	}
	if err == nil {
		err = e.fill(b, 0, zeroed) // the driver clears fresh memory, but no document promises that
	}
	if err == nil && o.Verify {
		err = e.verify(b, filter(b.segments, func(s *segment) bool { return s.outcome.state != active }))
	}
	if err == nil && o.Poison {
		err = e.poison(b)
	}
	return err
}

// waitsHere reports whether all contents of a paused extent wait in memory that a move has put on its device.
func (x *extent) waitsHere() bool {
	return !slices.ContainsFunc(x.segments, func(s *segment) bool {
		return s.contents == nil || !store.Portable(s.contents)
	})
}

// makeRoom lets go of contents that have waited in memory of the same device, and are back: too little is free for
// both. Their segments stay active even if the resume of others fails, so they are verified first.
func (e *Engine) makeRoom(b *batch, o *operation, loaders map[store.Store]store.Loader) error {
	err := loaders[e.peer].Wait()
	delete(loaders, e.peer)
	of := map[*segment]bool{}
	for _, x := range b.back {
		for _, s := range x.segments {
			of[s] = true
		}
	}
	if err == nil {
		err = e.fill(b, 0, func(s *segment) store.Ranges {
			if !of[s] {
				return nil
			}
			return zeroed(s)
		})
	}
	if err == nil && o.Verify {
		err = e.verify(b, slices.Collect(maps.Keys(of)))
	}
	if err != nil {
		return err
	}
	for s := range of {
		s.contents.Discard()
		s.outcome = outcome{state: active, aside: s.outcome.aside}
	}
	b.back = nil
	e.driver.Reclaim.Drain()
	return nil
}
