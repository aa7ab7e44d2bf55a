package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/mapping"
	"tms/vmm/stats"
	"tms/vmm/store"
)

// Resume gives every paused segment with the tags new memory at its old address, and its contents where they were saved,
// and returns how many bytes of memory that was.
//
// It is a transaction: create, map and refill all, then drop what was saved. After an error every segment is still
// paused with its contents, and nothing new is held. (After a move to a device without room for contents and their
// copies, an error leaves the segments active that were back.) Contents that cannot be read back from disk stop the
// resume of their segment, and of all segments resumed with it, until the program frees that segment.
//
// Host memory of contents that are not retained is back when Resume returns, unless that takes long: see store.Discarded.
// Resume waits up to Options.Wait for device memory that is short, and says so once. It holds nothing during that wait,
// and is one transition for its observer. A caller that keeps others from taking memory cannot leave the wait to Resume:
// with Options.Retried and a Wait it gets the shortage at once, which is no transition, and asks again with
// Options.Asked. With Options.Coming, Resume takes memory as another process gives it back. With Options.Order it brings
// memory back step by step.
// Errors: ErrBarred, ErrCapturing, ErrContents, store.ErrContentsLost, *cuda.Error with cuda.OutOfMemory when others
// hold the memory. (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) Resume(options Options) (mapped uint64, err error) {
	defer e.audit(&err)
	if options.Order != nil {
		return e.resumeInOrder(options)
	}
	if err := e.barred(&options); err != nil {
		return 0, err
	}
	resumes := func(s *segment) bool { // memory of other processes comes later
		return s.is(paused) && s.imported == nil && s.changedAfter(options.Since)
	}
	if options.Retried && options.Wait > 0 && !options.Capturing {
		// It has to find enough memory free, or made free here, before it begins.
		options.Wait = 0
		e.FreeDeferred()
		for d, need := range e.needs(e.choose(options.Tags, resumes)) {
			err := e.shortageOn(d, need.held, need.bytes, nil)
			if err != nil && e.MakeRoom(d.ordinal) {
				err = e.shortageOn(d, need.held, need.bytes, nil)
			}
			if err != nil {
				e.noteWait(&options, err)
				return 0, fmt.Errorf("resume: %w", err)
			}
		}
	}
	o := e.begun("resume", options)
	defer e.over(o, &mapped, &err)
	if o.Capturing {
		return 0, fmt.Errorf("resume: %w", ErrCapturing)
	}

	// The resume tries until memory is not short, or the wait is over. A resume that waits looks first whether enough
	// is free: a try would take memory from others that does not suffice.
	_, looks := e.noted.Load(o.what())
	looks = looks && o.Coming == nil // it takes what does not suffice yet
	until, compacted := time.Now().Add(o.Wait), false
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 250 * time.Millisecond}); ; {
		start := time.Now()
		o.discarded, o.awaited = store.Discarded{Start: start, Later: o.Coming != nil}, 0
		e.FreeDeferred()
		o.spent.waited += time.Since(start)
		err = e.transact("resume", o, resumes, func(batches []*batch) error {
			bytes, err := e.retake(batches, o, looks)
			if err == nil {
				mapped = bytes
				e.count(batches, start.Add(o.awaited), nil, func(t *totals) *stats.Total { return &t.resumes })
			}
			return err
		}, e.resumedSince(start, o))
		short, is := errors.AsType[*shortage](err)
		if !is && !errors.Is(err, cuda.OutOfMemory) {
			break
		}
		if is && !compacted && e.MakeRoom(short.device.ordinal) {
			compacted = true
			continue
		}
		compacted = false
		if !is || o.MakeRoom == nil || !o.MakeRoom(short.device.ordinal, short.lacks) {
			if o.Wait > 0 {
				looks = true
				e.noteWait(&o.Options, err)
			}
			if !retry.SleepUnless(until, o.Cancel) {
				break
			}
		}
		o.spent = spent{asked: o.spent.asked, waited: time.Since(o.spent.asked)} // all of it was for memory
	}

	// What waits for this process's memory alone is there. The rest waits for other processes.
	if err == nil {
		e.dropWoken(o)
		e.noted.Delete(o.what())
		theirs := e.choose(o.Tags, func(s *segment) bool {
			return s.imported != nil && s.changedAfter(o.Since) && (o.Barred == nil || o.Barred(s.tag.name) == "")
		})
		err = e.resumeImports(o, o.Importers, o.Cancel, theirs)
	}
	if err != nil {
		return mapped, fmt.Errorf("resume: %w", err)
	}
	if !o.Unseen {
		o.spent.waited += o.discarded.Await()
	}
	return mapped, nil
}

// need is what a resume takes of a device: bytes, of which it holds some already.
type need struct{ held, bytes uint64 }

// needs returns what a resume of segments takes.
func (e *Engine) needs(segments []*segment) map[*device]need {
	of := map[*device]need{}
	var p pace
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range segments {
		n := of[s.device]
		n.bytes += s.length()
		if s.extent != nil { // with memory: only its owner may read the step
			n.held += s.length()
		}
		of[s.device] = n
		p.yield(e, 1)
	}
	return of
}

// retake is the work of a resume, and returns how many bytes of memory that was. With looks, it first looks whether
// enough is free.
func (e *Engine) retake(batches []*batch, o *operation, looks bool) (uint64, error) {
	var names []string
	for _, b := range batches {
		for _, s := range b.segments {
			if len(names) == 0 || names[len(names)-1] != s.tag.name {
				names = append(names, s.tag.name)
			}
		}
	}
	if err := o.barredFrom(names); err != nil {
		return 0, err
	}
	e.gather(batches, o.ExtentBytes, o.at)
	for _, b := range batches {
		if looks {
			if err := e.shortageOn(b.device, b.held, b.moved, nil); err != nil {
				return 0, err
			}
		}
	}
	err := e.resume(batches, o)
	bytes := uint64(0)
	for _, b := range batches {
		bytes += b.moved
	}
	return bytes, err
}

// resumedSince returns what is done with the tags of a resume that began at start.
func (e *Engine) resumedSince(start time.Time, o *operation) func(*tag) {
	return func(t *tag) { t.lastResume = (time.Since(start) - o.awaited).Seconds() }
}

// barred returns an error if others keep memory paused that a resume is for. It looks at whole tags, so Resume looks
// again at what it has claimed.
func (e *Engine) barred(o *Options) error {
	if o.Barred == nil || o.Since > 0 {
		return nil
	}
	var names []string
	var p pace
	e.mu.Lock()
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		for name, t := range d.tags {
			if p.yield(e, 1); t.paused > 0 && (o.Tags == nil || slices.Contains(o.Tags, name)) {
				names = append(names, name)
			}
		}
	}
	e.mu.Unlock()
	return o.barredFrom(names)
}

// barredFrom returns an error if others keep memory of these tags paused. A pause has said so before it took memory.
func (o *Options) barredFrom(names []string) error {
	if o.Barred == nil {
		return nil
	}
	for _, name := range names {
		if who := o.Barred(name); who != "" {
			return fmt.Errorf("%w: %s", ErrBarred, who)
		}
	}
	return nil
}

// resume restores all batches, or none.
func (e *Engine) resume(batches []*batch, o *operation) error {
	for _, b := range batches {
		defer b.setLaterApart(o)()
	}
	gives := func(s *segment) bool { return s.contents != nil && !e.retains(s, o) }
	err := guard.All(batches, func(b *batch) error { return e.restore(b, o) })
	for _, b := range batches {
		o.awaited = max(o.awaited, b.waiting)
	}
	if err == nil {
		err = o.await()
	}
	o.spent.waited += o.awaited
	if err != nil {
		for _, b := range batches {
			for _, x := range slices.Concat(b.extents, b.later) {
				if x.segments[0].outcome.state == active { // makeRoom
					continue
				}
				// A second failure leaves a step in place; the extent records that, and the next resume, pause or free
				// goes on from there.
				_ = x.Undo(x.segments[0].extent == x)
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
			if gives(s) {
				o.discard(s)
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
	total := uint64(0)
	for _, s := range b.segments {
		total += s.back().saved.Bytes()
	}
	b.progress.total.Store(total)
	e.contexts.FindUsers(b.device.users, &b.device.peers)
	defer func() {
		if o.step == 0 { // resumeInOrder ends those of later steps
			b.endAsides()
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

	// While it waits for memory that is on its way, the stores let go of what they have copied: it would take time later.
	var copied error
	idle := func() error {
		copied = cmp.Or(copied, wait())
		return copied
	}

	// What waits in memory of the same device comes first: it can make room for the rest.
	var here, elsewhere []*extent
	for _, x := range b.extents {
		if slices.ContainsFunc(x.segments, func(s *segment) bool {
			return s.contents == nil || !store.Portable(s.contents)
		}) {
			elsewhere = append(elsewhere, x)
		} else {
			here = append(here, x)
		}
	}
	for n, x := range slices.Concat(here, elsewhere, b.later) {
		held := x.Step > mapping.None
		if err = b.create(x, o, idle); copied != nil { // what has not come back makes no room
			err = nil
			break
		}
		if errors.Is(err, cuda.OutOfMemory) && len(b.back) > 0 && o.Order == nil {
			if err = e.makeRoom(b, o, loaders); err == nil {
				err = x.Create()
			}
		}
		if errors.Is(err, cuda.OutOfMemory) {
			err = e.shortageOn(b.device, b.held, b.moved, err)
		}
		if err == nil && !held {
			b.held += x.Size
		}
		if err == nil && n >= len(b.extents) { // the contents before it are on their way by now
			continue
		}
		if err == nil && o.step == 0 {
			err = x.Attach()
		}
		if err == nil && (o.step > 0 || !x.reaches()) {
			var end func()
			if end, err = x.aside(); err == nil {
				b.asides = append(b.asides, end)
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
		if n < len(here) {
			b.back = append(b.back, x)
		}
	}

	// The contents come back, as far as they have not while the driver worked.
	copying := time.Now()
	defer func() { b.copying = time.Since(copying) }()
	waited := cmp.Or(copied, wait())
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
		err = e.fill(b, poisonWord, func(s *segment) store.Ranges { return s.back().lost })
	}
	for _, x := range b.extents { // nothing reads contents before they are back
		if err == nil && o.step > 0 {
			err = x.Attach()
		}
	}
	return err
}

// reaches reports whether an extent's own device has access to it at its addresses. The program decides that of memory
// that it maps itself.
func (x *extent) reaches() bool {
	return x.userMapped == nil || x.userMapped.access.Writable(x.device.ordinal)
}

// endAsides ends the mappings of aside.
func (b *batch) endAsides() {
	for _, end := range b.asides {
		end()
	}
	b.asides = nil
}

// aside maps an extent's memory at one more place, where a resume reaches the contents of its segments.
func (x *extent) aside() (end func(), err error) {
	address, end, err := x.Aside()
	if err != nil {
		return nil, err
	}
	for _, s := range x.segments {
		s.outcome.aside = address + s.address - x.Address
	}
	return end, nil
}
