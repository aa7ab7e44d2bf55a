package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/guard"
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
// Errors: ErrBarred, ErrCapturing, ErrContents, store.ErrContentsLost, *cuda.Error with cuda.OutOfMemory when others
// hold the memory. (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) Resume(options Options) (mapped uint64, err error) {
	defer e.audit(&err)
	if err := e.barred(&options); err != nil {
		return 0, err
	}
	if options.Retried && options.Wait > 0 && !options.Capturing {
		options.Wait = 0
		if err := e.lacking(&options); err != nil {
			e.noteWait(&options, err)
			return 0, fmt.Errorf("resume: %w", err)
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
	until, compacted := time.Now().Add(o.Wait), false
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 250 * time.Millisecond}); ; {
		start := time.Now()
		o.discarded = discarded{start: start}
		e.FreeDeferred()
		o.spent.waited += time.Since(start)
		err = e.transact("resume", o, o.resumes, func(batches []*batch) error {
			var names []string
			for _, b := range batches {
				for _, s := range b.segments {
					if len(names) == 0 || names[len(names)-1] != s.tag.name {
						names = append(names, s.tag.name)
					}
				}
			}
			err := o.barredFrom(names)
			if err != nil {
				return err
			}
			bytes := e.gather(batches, o.ExtentBytes)
			for _, b := range batches {
				if looks && err == nil {
					err = e.shortageOf(b, nil)
				}
			}
			if err == nil {
				err = e.resume(batches, o)
			}
			if err == nil {
				mapped = bytes
				e.count(batches, start, nil, func(t *totals) *stats.Total { return &t.resumes })
			}
			return err
		}, func(t *tag) { t.lastResume = time.Since(start).Seconds() })
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
			return s.isImported() && s.changedAfter(o.Since) && (o.Barred == nil || o.Barred(s.tag.name) == "")
		})
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

// lacking returns a shortage if too little memory is free for a resume that has not begun, and none can be made free
// here. (cuMemGetInfo)
func (e *Engine) lacking(o *Options) error {
	e.FreeDeferred()
	held, need := map[*device]uint64{}, map[*device]uint64{}
	chosen := e.choose(o.Tags, o.resumes)
	var p pace
	e.mu.Lock()
	for _, s := range chosen {
		need[s.device] += s.length()
		if s.extent != nil && s.extent.step > none {
			held[s.device] += s.length()
		}
		p.yield(e, 1)
	}
	e.mu.Unlock()
	for d, bytes := range need {
		err := e.shortageOn(d, held[d], bytes, nil)
		if err != nil && e.MakeRoom(d.ordinal) {
			err = e.shortageOn(d, held[d], bytes, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// noteWait logs that a resume waits, and the holders of the memory. It does so once until a resume of the same tags
// succeeds, because Python waits in parts.
func (e *Engine) noteWait(o *Options, cause error) {
	if _, noted := e.noted.LoadOrStore(o.what(), true); noted {
		return
	}
	holders := ""
	if short, is := errors.AsType[*shortage](cause); is {
		holders = e.process.Holders(short.device.uuid)
	}
	e.process.Warn(fmt.Sprintf("the resume of %s waits for memory: %v%s", o.what(), cause, holders))
}

// what names the tags of a resume.
func (o *Options) what() string {
	if o.Tags == nil {
		return "all tags"
	}
	return strings.Trim(fmt.Sprintf("%.80q", o.Tags), "[]")
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

// Without a gate nothing can move what is live, and nearly all memory in extents that segments share may become slack.
// So at most a sixteenth of a device lies in such extents. More may, as long as the program could lose all of it and
// have the most that it ever had, and a quarter of the device beyond.
const (
	sharedPart = 16
	sparePart  = 4
)

// spare returns how many bytes of a device nothing would miss but a program that grows by more than a quarter of the
// device. It is called while the memory that a resume is to take is still free. (cuMemGetInfo)
func (e *Engine) spare(d *device) uint64 {
	free, err := d.freeBytes()
	if err != nil {
		return 0
	}
	without := uint64(0) // bytes that are paused, whoever resumes them
	e.mu.Lock()
	defer e.mu.Unlock()
	e.visit(nil, func(of *device, s *segment) int {
		if of == d && s.state == paused && !s.isImported() {
			without += s.length()
		}
		return 1
	})
	reach, needs := free+d.has-min(without, d.has), d.most+d.total/sparePart
	return reach - min(needs, reach)
}

// bound divides extents that have no memory yet, where a device would otherwise have too much memory in shared extents.
// has is the bytes that are in shared extents already.
//
// Each handle that is saved makes the bytes of a segment depend on its neighbours. So the smallest segments share
// first, also where larger ones lie between them.
func (e *Engine) bound(d *device, extents []*extent, has uint64) (bounded []*extent) {
	dividable := func(x *extent) bool { return x.step == none && len(x.segments) > 1 }
	wanted, may := has, d.total/sharedPart
	for _, x := range filter(extents, dividable) {
		wanted += x.size
	}
	if wanted > may {
		may = max(may, e.spare(d))
	}
	if wanted <= may {
		return extents
	}
	left := may - min(may, has)
	var all []*segment          // of the extents that may be divided, one after the other
	pairs := map[uint64][]int{} // of neighbours, by the size of the larger: where the second is in all
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
	total := uint64(0)
	for _, s := range b.segments {
		total += s.back().saved.Bytes()
	}
	b.progress.total.Store(total)
	e.refreshUsers(b.device)
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
	copying := time.Now()
	defer func() { b.copying = time.Since(copying) }()
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
		err = e.fill(b, poisonWord, func(s *segment) store.Ranges { return s.back().lost })
	}
	return err
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

// wake is a resume of one slab, by a thread whose turn it is. What is kept of the slab stays where it is until the tag
// is resumed: the program may read it there (BackupPointer).
func (e *Engine) wake(s *segment) (woken bool, err error) {
	o := &operation{Options: Options{RetainBackup: true, Verify: true}}
	wanted := func(of *segment) bool {
		return of == s && s.is(paused) && s.slab != nil && s.extent == nil && !s.gated && s.inTag()
	}
	found := map[*device]*batch{}
	e.mu.Lock()
	if s.owner == nobody && wanted(s) {
		found[s.device] = s.device.newBatch()
		found[s.device].claim(s, wanted)
	}
	e.mu.Unlock()
	batches := e.batches(found)
	err = e.transactOn(batches, "resume", o, func(batches []*batch) error {
		e.gather(batches, 0)
		err := e.resume(batches, o)
		woken = err == nil
		return err
	}, func(*tag) {
		if s.contents != nil {
			s.device.woken[s] = true
		}
	})
	return woken, err
}

// dropWoken gives up, after a resume, what is kept of slabs that wakeSlab has made active before it.
func (e *Engine) dropWoken(o *operation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		for s := range d.woken {
			if p.yield(e, 1); s.owner != nobody || s.state != active || o.Tags != nil && !slices.Contains(o.Tags, s.tag.name) {
				continue
			}
			delete(d.woken, s)
			if s.contents != nil && s.current && !e.retains(s, o) {
				o.discarded.add(s.contents, s.prompt)
				s.discard()
			}
		}
	}
}
