package vmm

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"tms/internal/guard"
	"tms/vmm/backup"
	"tms/vmm/stats"
)

// Options of a pause or resume.
type Options struct {
	Tags         []string           // nil: every tag
	RetainBackup bool               // keep host copies after resume
	Discard      bool               // a pause saves no contents, and gives up those that earlier pauses kept
	Keep         []string           // but of these tags it saves them
	SaveAll      bool               // a pause saves in host memory what has no backup
	ToDisk       bool               // a pause saves in files what would take new host memory
	Toward       stats.Destinations // a pause saves there what has room, out of the driver's checkpoint's reach
	DiskDir      string             // where a pause puts files
	DiskSetting  string             // where the directory comes from, for error texts; "": it is the default
	Verify       bool               // compare contents after a resume with those before the pause
	ExtentBytes  uint64             // a resume gives neighbours common extents up to this size; 0: one each
	Wait         time.Duration      // how long a resume waits for memory that is short
	Poison       bool               // fill memory that a resume brings back without contents with NaNs
	Capturing    bool               // a stream of the process is being captured
	Gated        bool               // the gate is closed: nobody can give the devices work; see WhenUngated
	Importers    time.Duration      // how long a pause waits for others to unmap memory, and a resume for theirs
	Unseen       bool               // the program does not know of a resume, so that waits for memory alone: see discarded
	Since        uint64             // only what transitions after that have paused or resumed; 0: all
	Asked        time.Time          // when the caller began to wait for the program before a pause; or zero
	discarded    *discarded         // by a resume, or a pause with Discard
	spent        *spent
	waits        bool // for memory: e.waits has it
}

// batch is a device's part in a transition. From begin to end its segments and extents belong to it, and others see
// the segments as they were before.
type batch struct {
	device   *device
	segments []*segment // by address
	extents  []*extent  // that they have, or get, by address
	job      backup.Job // for a backup store
	progress *progress
	moved    uint64 // bytes of device memory that a pause gave back, or a resume took

	aside  map[*segment]uintptr         // where a resume maps memory that its device cannot reach
	back   []*extent                    // a resume brings their contents back from memory of the same device
	items  map[BackupKind][]backup.Item // what a pause saves
	saving map[BackupKind][]*segment    // of these, one by one
}

func (d *device) job() backup.Job {
	return backup.Job{Device: d.ordinal, Context: d.context, Node: int(d.node.Load())}
}

// span returns where the device reaches a segment's contents.
func (b *batch) span(s *segment) backup.Span {
	span := s.backupSpan()
	if address, ok := b.aside[s]; ok {
		span.Address = address
	}
	return span
}

// transact is the frame of every transition: it takes its turn, claims the segments that are wanted, does the work on
// them, and ends the transition whatever happens. After work that succeeds it calls done with each tag.
func (e *Engine) transact(operation string, o *Options, wanted func(*segment) bool, work func([]*batch) error,
	done func(*tag)) error {
	start := time.Now()
	e.takeTurn()
	defer e.transition.Unlock()
	batches := e.begin(o.Tags, wanted)
	o.spent.waited += time.Since(start)
	if len(batches) == 0 {
		return nil
	}
	for _, b := range batches {
		b.progress.operation = operation
		b.device.progress.Store(b.progress)
	}
	err := guard.Call(func() error { return work(batches) })
	batches[0].job.Budget.End() // all have the same
	if err != nil {
		done = func(*tag) {}
	}
	e.end(batches, o.Gated, done)
	for _, b := range batches {
		o.spent.copied += b.progress.done.Load()
		b.device.progress.Store(nil)
	}
	return err
}

// takeTurn locks transition, behind the preparations that were asked for before.
func (e *Engine) takeTurn() {
	e.mu.Lock()
	for e.preparing > 0 {
		e.settled.Wait()
	}
	e.mu.Unlock()
	e.transition.Lock()
}

// begin makes a transition the owner of segments and their extents, and returns them by device. Others may read a
// segment's state under the lock meanwhile, so outcome has what becomes of it. begin waits for others' driver calls on
// the same extents: none of those waits for the device.
func (e *Engine) begin(tags []string, wanted func(*segment) bool) (batches []*batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found map[*device][]*segment
	for busy := true; busy; {
		busy = false
		found = e.matching(tags, func(s *segment) bool {
			meant := wanted(s)
			busy = busy || meant && s.extent != nil && s.extent.owner != nobody
			return meant
		})
		if busy {
			e.settled.Wait()
		}
	}
	budget := &backup.Budget{Ledger: e.ledger}
	for d, segments := range found {
		slices.SortFunc(segments, func(x, y *segment) int { return cmp.Compare(x.address, y.address) })
		b := &batch{device: d, segments: segments, job: d.job(), progress: &progress{}}
		b.job.Budget = budget // of all batches together
		b.job.Copied = func(bytes uint64) { b.progress.done.Add(bytes) }
		for _, s := range segments {
			s.owner, s.outcome = aTransition, outcome{state: s.state, kept: s.kept}
			if x := s.extent; x != nil && x.owner == nobody {
				x.owner = aTransition
				b.extents = append(b.extents, x)
			}
		}
		batches = append(batches, b)
	}
	slices.SortFunc(batches, func(x, y *batch) int { return x.device.ordinal - y.device.ordinal })
	return batches
}

// choose is matching for callers that do not hold e.mu, and claim nothing: the segments may go at any time.
func (e *Engine) choose(tags []string, wanted func(*segment) bool) []*segment {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Values(e.matching(tags, wanted)))...)
}

// matching lists the segments with the tags (nil: every tag) that are wanted, by device. The caller holds e.mu.
func (e *Engine) matching(tags []string, wanted func(*segment) bool) map[*device][]*segment {
	found := map[*device][]*segment{}
	for _, d := range e.devices {
		list := func(t *tag) {
			for _, s := range t.segments {
				if wanted(s) {
					found[d] = append(found[d], s)
				}
			}
		}
		if tags == nil {
			for _, t := range d.tags {
				list(t)
			}
		}
		for i, name := range tags {
			if t := d.tags[name]; t != nil && !slices.Contains(tags[:i], name) {
				list(t)
			}
		}
	}
	return found
}

// filter lists what keep picks of a list.
func filter[T any](list []T, keep func(T) bool) (picked []T) {
	for _, one := range list {
		if keep(one) {
			picked = append(picked, one)
		}
	}
	return picked
}

// end makes the outcome of each segment its state, calls done with each tag, and wakes what waits for the transition.
// gated: the gate holds the program's threads from what was paused.
func (e *Engine) end(batches []*batch, gated bool, done func(*tag)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended++
	for _, b := range batches {
		d := b.device
		if len(*d.peers.Load()) > 0 {
			e.grantLate(b)
		}
		tags := map[*tag]bool{}
		for _, s := range b.segments {
			if s.gated {
				d.gated--
			}
			if s.state != s.outcome.state {
				s.changed = e.ended
			}
			if s.state == active && s.outcome.state == paused {
				s.tag.pausedBy = e.ended
			}
			s.gated = s.outcome.state == paused && !s.outcome.lost && (s.gated || gated && s.state == active)
			if s.gated {
				d.gated++
			}
			s.owner, s.state, s.kept, s.dead = nobody, s.outcome.state, s.outcome.kept, nil
			if s.outcome.lost {
				s.imported.lost = true
			}
			if !tags[s.tag] {
				tags[s.tag] = true
				done(s.tag)
			}
			if s.isUserMapped() {
				e.leaveUnmapped(s)
			}
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
			if len(x.segments) > 1 && !x.shared {
				x.shared = true
				d.shared += x.size
			}
		}
	}
	e.tellUngated()
	e.settled.Broadcast()
}

// parallel runs f for every device at once and returns the first error, after all have ended.
func parallel(batches []*batch, f func(*batch) error) error {
	errs := make(chan error, len(batches))
	for _, b := range batches {
		go func() { errs <- guard.Call(func() error { return f(b) }) }()
	}
	var first error
	for range batches {
		first = cmp.Or(first, <-errs)
	}
	return first
}
