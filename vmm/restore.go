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
