package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tms/vmm/stats"
)

// Pause releases the physical memory of every active segment with the tags, on all devices, after
// saving the contents of those that have a backup (unless Options.Discard), and returns how many bytes that was.
// When it returns, the memory is free for others; the system has the host memory of discarded contents back, unless
// that takes long: see store.Discarded.
//
// It is a transaction: wait for the devices; save contents; unmap all; release all. An error in one of the first three
// steps leaves every segment active. An error in the last leaves them paused; memory that the driver did not release is
// still held, and another Pause releases it.
//
// Where processes share memory there are two such transactions. The first unmaps other processes' memory, and waits for
// no other process. The second takes this process's own memory, once no other process has it mapped. Every pausing
// process does so, so two processes that have each other's memory mapped may pause in any order. If the second fails,
// the first is undone, as far as the other processes let it. Errors: ErrCapturing, ErrImported, store.ErrHostMemory,
// *cuda.Error. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Pause(options Options) (freed uint64, err error) {
	defer e.audit(&err)
	o := e.begun("pause", options)
	defer e.over(o, &freed, &err)
	defer e.ForgetLive(o.Tags)
	if o.Capturing {
		return 0, fmt.Errorf("pause: %w", ErrCapturing)
	}

	// No process gets memory of these tags from now on.
	e.mu.Lock()
	e.sharing.closing = append(e.sharing.closing, o)
	e.mu.Unlock()
	open := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.sharing.closing = slices.DeleteFunc(e.sharing.closing, func(other *operation) bool { return other == o })
	}
	defer open()

	// The first transaction takes other processes' memory. The second takes this process's own, once no other has it
	// mapped.
	var theirs, own []*segment
	defer func() { e.tellTook(o, theirs, own) }()
	_, theirs, err = e.pausePart(o, true)
	if err == nil {
		err = e.awaitImporters(o)
	}

	// An earlier transaction that failed may have left segments paused whose memory alone has their contents. Where
	// this pause saves contents it makes such segments active again, so that it saves these like all others.
	if err == nil {
		saves := func(s *segment) bool { return s.held && o.backupOf(s) != BackupNone }
		err = e.transact("resume", o, func(s *segment) bool {
			return s.is(paused) && s.extent != nil && slices.ContainsFunc(s.extent.segments, saves)
		}, func(batches []*batch) error {
			e.gather(batches, 0, nil)
			return e.resume(batches, o)
		}, func(*tag) {})
	}
	if err == nil {
		freed, own, err = e.pausePart(o, false)
	}

	// A pause that has taken none of its own memory maps the other processes' again.
	if err != nil && len(own) == 0 {
		open()
		wait := soon // the others have paused, and do not come back because of this pause
		if errors.Is(err, ErrImported) {
			wait = o.Importers // the others are refused for the same reason, if later
		}
		if failed := e.resumeImports(o, wait, nil, theirs); failed != nil {
			err = fmt.Errorf("%w; and memory of other processes is not mapped again, resume it: %v", err, failed)
		}
	}
	if err != nil {
		return freed, fmt.Errorf("pause: %w", err)
	}
	o.spent.waited += o.discarded.Await()
	return freed, nil
}

// tellTook tells the caller of a pause whose memory it has taken.
func (e *Engine) tellTook(o *operation, segments ...[]*segment) {
	if o.Took == nil {
		return
	}
	tags := map[string]bool{}
	var p pace
	e.mu.Lock()
	for _, s := range slices.Concat(segments...) {
		tags[s.tag.name] = true
		p.yield(e, 1)
	}
	e.mu.Unlock()
	for name := range tags {
		o.Took(name)
	}
}

// soon is how long a pause that has failed waits for other processes' memory.
const soon = 100 * time.Millisecond

// pausePart is one of the transactions of a pause: of other processes' memory, or of this one's own. It returns how
// many bytes that freed, and which segments lost their memory, even after an error.
func (e *Engine) pausePart(o *operation, theirs bool) (freed uint64, taken []*segment, err error) {
	start := time.Now()
	wanted := func(s *segment) bool {
		return (s.imported != nil) == theirs && (s.pausable() || s.is(paused) && s.extent != nil) &&
			s.changedAfter(o.Since)
	}

	// The devices finish the work that was submitted before the call. Another thread of the host may be needed for
	// that, so this thread holds no lock. A kernel launched during a pause must not use the tag's memory. Memory that
	// was freed before the call must be free too when Pause returns.
	going := map[*device]bool{}
	e.mu.Lock()
	e.visit(o.Tags, func(d *device, s *segment) int {
		if !going[d] && (wanted(s) || (s.imported != nil) == theirs && s.owner == aFree) {
			going[d] = true
		}
		return 1
	})
	e.mu.Unlock()
	devices := slices.Collect(maps.Keys(going))
	var ordinals []int
	for _, d := range devices {
		ordinals = append(ordinals, d.ordinal)
	}
	if theirs && len(devices) == 0 {
		return 0, nil, nil
	}
	deferred := !theirs // other processes wait while this one unmaps theirs
	if err := e.freeQuiesced(devices, deferred, func() error { return e.contexts.Finish(ordinals...) }); err != nil {
		return 0, nil, err
	}
	o.spent.waited += time.Since(start)

	of := func(s *segment) bool { return wanted(s) && slices.Contains(devices, s.device) }
	left := &left{}
	err = e.transact("pause", o, of, func(batches []*batch) error {
		// First the contents are saved. An error here, or in the next step, leaves the segments active, but for those of
		// parts that have left.
		err := e.saveAll(batches, o, left)

		// Then all extents are unmapped.
		var extents []*extent
		for _, b := range batches {
			extents = append(extents, filter(b.extents, b.stays)...)
		}
		if err == nil {
			err = o.detach(extents)
		}

		// After an error what was saved is discarded. Contents that were saved before stay, though the pause may have
		// overwritten parts of them, and so do the contents of a segment that is paused after all.
		unmapped := batches
		if err != nil {
			unmapped = nil
			for _, b := range batches {
				for _, s := range b.segments {
					switch replaced := s.outcome.contents != s.contents; {
					case !b.stays(s.extent):
					case s.outcome.state == active:
						if replaced {
							s.outcome.contents.Discard()
						}
						s.outcome.saved = s.saved
						s.outcome.current, s.outcome.sums = false, nil
					case replaced && s.contents != nil:
						s.contents.Discard()
					}
				}
			}
		}

		// The memory is given back.
		for _, b := range unmapped {
			stays := func(s *segment) bool { return b.stays(s.extent) }
			segments, extents := filter(b.segments, stays), filter(b.extents, b.stays)
			err = cmp.Or(err, left.release(b, o, segments, extents))
		}
		if !theirs {
			e.count(batches, start, err, func(t *totals) *stats.Total { return &t.pauses })
		}
		return err
	}, func(t *tag) {
		t.lastPause, t.pausedSince = time.Since(start).Seconds(), float64(time.Now().UnixMilli())/1000
	})
	return left.freed, left.taken, err
}
