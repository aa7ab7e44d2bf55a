package vmm

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tms/internal/guard"
	"tms/vmm/backup"
)

// Options of a pause or resume.
type Options struct {
	Tag          *string        // nil: every tag
	RetainBackup bool           // keep host copies after resume
	Discard      bool           // a pause saves no contents, and gives up what is kept of earlier ones
	ToDisk       bool           // a pause saves in files what would take new host memory
	PoolBytes    uint64         // without retaining: keep so many bytes of pinned host memory for the next pause
	DiskDir      string         // where a pause puts files
	DiskSetting  string         // what that came from, for error texts; "": it is the default
	DiskChunk    uint64         // bytes of one read or write
	Verify       bool           // compare contents after a resume with those before the pause
	ExtentBytes  uint64         // segments side by side get extents of up to so much when resumed; 0: one each
	Wait         time.Duration  // how long a resume tries again when memory is short
	Poison       bool           // fill memory that a resume brings back without contents with NaNs
	Progress     func(Progress) // nil, or told now and then how far contents have come
	Capturing    bool           // a stream of the process is being captured
	Gated        bool           // nobody can give the devices work; see WhenUngated
	Importers    time.Duration  // how long a pause waits for other processes to unmap memory, and a resume for theirs
	Asked        time.Time      // when a pause was, if its caller has waited for the program since; or zero
	discarded    *discarded     // by a resume, or by such a pause
	spent        *spent
}

// batch is a device's part in a transition: a pause or resume. From begin to end its segments and extents are
// its own, and others see the segments as they were before.
type batch struct {
	device   *device
	segments []*segment     // by address
	extents  []*extent      // that they have, or get, by address
	budget   *backup.Budget // of host memory, for all batches together

	aside map[*segment]uintptr // where the memory of some is mapped for the resume alone
}

// job is what a backup store needs to know.
func (b *batch) job() backup.Job {
	job := b.device.job()
	job.Budget = b.budget
	return job
}

// span is where the device reaches a segment's contents.
func (b *batch) span(s *segment) backup.Span {
	span := s.backupSpan()
	if address, ok := b.aside[s]; ok {
		span.Address = address
	}
	return span
}

// transit does a transition's work on the batches of begin, and ends it whatever happens; when the work is
// done, each tag notes that.
func (e *Engine) transit(batches []*batch, work func() error, note func(*tag)) error {
	err := guard.Call(work)
	if err != nil {
		note = func(*tag) {}
	}
	e.end(batches, note)
	return err
}

// begin makes a transition the owner of segments, and of their extents, and returns them, grouped by device.
// What is to become of a segment is noted in its outcome meanwhile: others may read its state under the
// lock. It waits for driver calls of others that concern the same extents: none of those waits for the device.
func (e *Engine) begin(name *string, wanted func(*segment) bool) []*batch {
	e.mu.Lock()
	defer e.mu.Unlock()
again:
	var batches []*batch
	budget := &backup.Budget{}
	for d, segments := range e.matching(name, wanted) {
		slices.SortFunc(segments, func(x, y *segment) int { return cmp.Compare(x.address, y.address) })
		b := &batch{device: d, segments: segments, budget: budget}
		for _, s := range segments {
			x := s.extent
			if x == nil || len(b.extents) > 0 && x == b.extents[len(b.extents)-1] {
				continue
			}
			if x.owner != nobody {
				e.settled.Wait()
				goto again
			}
			b.extents = append(b.extents, x)
		}
		batches = append(batches, b)
	}
	slices.SortFunc(batches, func(x, y *batch) int { return x.device.ordinal - y.device.ordinal })
	for _, b := range batches {
		for _, s := range b.segments {
			s.owner, s.outcome = aTransition, outcome{state: s.state, kept: s.kept, gated: s.gated}
		}
		for _, x := range b.extents {
			x.owner = aTransition
		}
	}
	return batches
}

// matching lists the segments with the tag (nil: every tag) that are wanted, by device. The caller holds e.mu.
func (e *Engine) matching(name *string, wanted func(*segment) bool) map[*device][]*segment {
	found := map[*device][]*segment{}
	for _, d := range e.devices {
		list := func(t *tag) {
			for _, s := range t.segments {
				if wanted(s) {
					found[d] = append(found[d], s)
				}
			}
		}
		if name == nil {
			for _, t := range d.tags {
				list(t)
			}
		} else if t := d.tags[*name]; t != nil {
			list(t)
		}
	}
	return found
}

// end makes the outcome of each segment its state, lets what waited for the transition go on, and
// lets each tag note its time.
func (e *Engine) end(batches []*batch, note func(*tag)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range batches {
		e.grantLate(b)
		noted := map[*tag]bool{}
		for _, s := range b.segments {
			s.owner = nobody
			s.state, s.kept = s.outcome.state, s.outcome.kept
			s.setGated(s.outcome.gated)
			if s.outcome.lost {
				s.imported.lost = true
			}
			if !noted[s.tag] {
				noted[s.tag] = true
				note(s.tag)
			}
			e.leaveUnmapped(s)
		}
		for _, x := range b.extents {
			x.owner = nobody
			if x.step == none {
				e.dissolve(x)
				continue
			}
			for _, s := range x.segments {
				s.extent = x
			}
		}
	}
	e.tellUngated()
	e.settled.Broadcast()
}

// grantLate gives the extents of a transition the access that Grant could not give them. The caller holds
// e.mu, which is let go for driver calls.
func (e *Engine) grantLate(b *batch) {
	for {
		var stale []*extent
		for _, x := range b.extents {
			if x.stale() {
				stale = append(stale, x)
			}
		}
		if len(stale) == 0 {
			return
		}
		if err := e.unlocked(func() (first error) {
			for _, x := range stale {
				if err := x.grant(); first == nil {
					first = err
				}
			}
			return first
		}); err != nil {
			line := fmt.Sprintf("device %d: other devices could not be given access to memory: %v", b.device.ordinal, err)
			_ = e.unlocked(func() error { e.warn(line); return nil })
			return
		}
	}
}

// checkHost refuses, before anything is copied, a transition for which host memory does not suffice: that which the segments
// of all devices that are meant are to have. Errors: *backup.Shortage.
func (e *Engine) checkHost(batches []*batch, meant func(*segment) bool) error {
	var sizes []uint64
	for _, b := range batches {
		for _, s := range b.segments {
			if meant(s) {
				sizes = append(sizes, s.length())
			}
		}
	}
	return e.host.Check(batches[0].budget, sizes)
}

// parallel runs f for every device at once and returns the first error, after all have ended.
func parallel(batches []*batch, f func(*batch) error) error {
	errs := make(chan error, len(batches))
	for _, b := range batches {
		go func() { errs <- guard.Call(func() error { return f(b) }) }()
	}
	var first error
	for range batches {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
