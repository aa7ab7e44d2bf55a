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
			var err error
			if o.Barred != nil {
				err = o.barredFrom(tagsOf(batches))
			}
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
			return s.isImported() && o.means(s) && (o.Barred == nil || o.Barred(s.tag.name) == "")
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
	for _, name := range names {
		if who := o.Barred(name); who != "" {
			return fmt.Errorf("%w: %s", ErrBarred, who)
		}
	}
	return nil
}

// tagsOf lists the tags of what a transition has claimed.
func tagsOf(batches []*batch) (names []string) {
	for _, b := range batches {
		for _, s := range b.segments {
			if len(names) == 0 || names[len(names)-1] != s.tag.name {
				names = append(names, s.tag.name)
			}
		}
	}
	return names
}

// resumes reports whether a resume is to give a segment memory. That of other processes comes later.
func (o *Options) resumes(s *segment) bool { return s.is(paused) && !s.isImported() && o.means(s) }
