package vmm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tms/internal/aid/backoff"
	"tms/vmm/cuda"
	"tms/vmm/stats"
	"tms/vmm/store"
)

// Resume gives every paused segment with the tags new memory at its old address, and its contents where they were kept,
// and returns how many bytes of memory that was.
//
// It is a transaction: create, map and refill all, then drop what was kept. After an error every segment is still
// paused with its contents, and nothing new is held. (After a move to a device without room for contents and their
// copies, an error leaves the segments active that were back.) Contents that cannot be read back from disk stop the
// resume of their segment, and of all segments resumed with it, until the program frees that segment.
//
// Host memory of contents that are not kept is back when Resume returns, unless that takes long: see discarded. Resume
// waits up to Options.Wait for device memory that is short, and says so once. It holds nothing during that wait, and is
// one transition for its observer. A caller that keeps others from taking memory cannot leave the wait to Resume: with
// Options.Retried and a Wait it gets the shortage at once, which is no transition, and asks again with Options.Asked.
// Errors: ErrCapturing, ErrContents, store.ErrContentsLost, *cuda.Error with cuda.OutOfMemory when others hold the
// memory. (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) Resume(options Options) (mapped uint64, err error) {
	defer e.audit(&err)
	_, waits := e.noted.Load(options.what())
	waits = waits || options.Retried && !options.Asked.IsZero()
	if options.Retried && options.Wait > 0 && !options.Capturing {
		options.Wait = 0
		if err := e.lacking(&options); err != nil {
			if !waits {
				e.noteWait(&options, err)
			}
			return 0, fmt.Errorf("resume: %w", err)
		}
	}
	o := e.begun("resume", options)
	defer e.over(o, &mapped, &err)
	until := time.Now().Add(o.Wait)
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 250 * time.Millisecond}); ; {
		mapped, err = e.tryResume(o, waits)
		short, is := errors.AsType[*shortage](err)
		if is && e.MakeRoom(short.device.ordinal) {
			mapped, err = e.tryResume(o, waits)
			short, is = errors.AsType[*shortage](err)
		}
		if !is && !errors.Is(err, cuda.OutOfMemory) {
			break
		}
		if !is || o.MakeRoom == nil || !o.MakeRoom(short.device.ordinal, short.lacks) {
			if o.Wait > 0 && !waits {
				waits = true
				e.noteWait(&o.Options, err)
			}
			if !retry.SleepUnless(until, o.Cancel) {
				break
			}
		}
		o.spent = spent{asked: o.spent.asked, waited: time.Since(o.spent.asked)} // all of it was for memory
	}
	if err == nil {
		e.noted.Delete(o.what())
		theirs := e.choose(o.Tags, func(s *segment) bool { return s.isImported() && o.means(s) })
		err = e.resumeImports(o, o.Importers, o.Cancel, theirs)
	}
	if err != nil {
		return mapped, fmt.Errorf("resume: %w", err)
	}
	if !o.Unseen {
		o.discarded.await(&o.spent)
	}
	return mapped, nil
}

// resumes reports whether a resume is to give a segment memory. That of other processes comes later.
func (o *Options) resumes(s *segment) bool { return s.is(paused) && !s.isImported() && o.means(s) }

// tryResume is one try. With looks it does not find out by trying whether there is too little memory, because the try
// would take memory from others that does not suffice.
func (e *Engine) tryResume(o *operation, looks bool) (mapped uint64, err error) {
	if o.Capturing {
		return 0, ErrCapturing
	}
	start := time.Now()
	o.discarded = discarded{start: start}
	e.FreeDeferred()
	o.spent.waited += time.Since(start)
	err = e.transact("resume", o, o.resumes,
		func(batches []*batch) (err error) {
			bytes := e.gather(batches, o.ExtentBytes)
			if err = e.resume(batches, o, looks); err == nil {
				mapped = bytes
				e.count(batches, start, nil, func(t *totals) *stats.Total { return &t.resumes })
			}
			return err
		},
		func(t *tag) { t.lastResume = time.Since(start).Seconds() })
	if err == nil {
		e.dropWoken(o)
	}
	return mapped, err
}

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
// Each handle that is saved makes the bytes of a segment depend on its neighbours. So the smallest segments share first,
// also where larger ones lie between them.
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

func (e *Engine) resume(batches []*batch, o *operation, looks bool) error {
	for _, b := range batches {
		if looks {
			if err := e.shortageOf(b, nil); err != nil {
				return err
			}
		}
	}
	if err := parallel(batches, func(b *batch) error { return e.restore(b, o) }); err != nil {
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
	loaders := map[store.Store]store.Loader{}
	b.aside = map[*segment]uintptr{}
	var ends []func() // of these mappings
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	defer func() {
		defer o.spent.copyingSince(time.Now()) // what there was to copy beyond the driver's work
		for _, l := range loaders {
			if waited := l.Wait(); err == nil {
				err = b.named(waited)
			}
		}
		if err == nil {
			// The driver clears fresh memory, but no document promises that.
			err = e.fill(b, 0, zeroed)
		}
		if err == nil && o.Verify {
			err = e.verify(b, filter(b.segments, func(s *segment) bool { return s.outcome.state != active }))
		}
		if err == nil && o.Poison {
			err = e.poison(b)
		}
	}()
	elsewhere := func(x *extent) bool { return !x.waitsHere() }
	for _, x := range slices.Concat(filter(b.extents, (*extent).waitsHere), filter(b.extents, elsewhere)) {
		err := x.create()
		if errors.Is(err, cuda.OutOfMemory) && len(b.back) > 0 {
			if err = e.makeRoom(b, o, loaders); err == nil {
				err = x.create()
			}
		}
		if err != nil {
			if errors.Is(err, cuda.OutOfMemory) {
				err = e.shortageOf(b, err)
			}
			return err
		}
		if err := x.attach(); err != nil {
			return err
		}
		if s := x.segments[0]; !s.accessible() {
			address, end, err := x.aside()
			if err != nil {
				return err
			}
			b.aside[s], ends = address, append(ends, end)
		}
		for _, s := range x.segments {
			if s.contents == nil || !s.current {
				continue
			}
			store := s.contents.Store()
			if loaders[store] == nil {
				loaders[store] = store.Load(b.job)
			}
			loaders[store].Add(b.span(s), s.contents)
		}
		if x.waitsHere() {
			b.back = append(b.back, x)
		}
	}
	return nil
}

// waitsHere reports whether all contents of a paused extent wait in memory that a move has put on its device.
func (x *extent) waitsHere() bool {
	return !slices.ContainsFunc(x.segments, func(s *segment) bool {
		return s.contents == nil || !store.Portable(s.contents)
	})
}

// zeroed lists what a resume fills with zeros.
func zeroed(s *segment) store.Ranges {
	if s.outcome.state == active { // makeRoom has
		return nil
	}
	return s.back().zero
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
		s.outcome = outcome{state: active}
	}
	b.back = nil
	e.driver.Reclaim.Drain()
	return nil
}

// named adds to an error about lost contents which segment they belong to.
func (b *batch) named(err error) error {
	lost, ok := errors.AsType[*store.Lost](err)
	if !ok {
		return err
	}
	for _, s := range b.segments {
		if lost.Address-b.span(s).Address < uintptr(s.length()) {
			return fmt.Errorf("tag %q, %d bytes at %#x: %w", s.tag.name, s.size, s.address, err)
		}
	}
	return err
}
