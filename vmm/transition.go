package vmm

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/mapping"
	"tms/vmm/stats"
	"tms/vmm/store"
)

// Options of a pause or resume.
type Options struct {
	Tags         []string            // nil for every tag
	RetainBackup bool                // keep host copies after resume
	Discard      bool                // a pause saves no contents, and gives up those that earlier pauses saved
	Except       []string            // but of these tags it saves them
	SaveAll      bool                // a pause saves in host memory what has no backup
	ToDisk       bool                // a pause saves in files what would take new host memory
	ToMemory     bool                // a pause saves all in files that are host memory, without blocks of zeros; see Spill
	Toward       stats.Destinations  // a pause saves there what has room, out of the driver's checkpoint's reach
	DiskDir      string              // where a pause puts files
	DiskSetting  string              // where the directory comes from, for error texts, or "" for the default
	Verify       bool                // compare contents after a resume with those before the pause
	ExtentBytes  uint64              // a resume gives neighbours common extents up to this size, or with 0 one each
	Wait         time.Duration       // how long a resume waits for memory that is short
	Cancel       <-chan struct{}     // ends, when it is closed, each wait for memory and for other processes; or nil
	MakeRoom     MakeRoom            // asks other processes for memory that a resume is short of; or nil
	Retried      bool                // the caller asks again for a resume that is short of memory: see Engine.Resume
	Barred       func(string) string // who keeps a resume from memory of a tag, or ""; nil: none do
	Poison       bool                // fill memory that a resume brings back without contents with NaNs
	Capturing    bool                // a stream of the process is being captured
	Gated        bool                // the gate is closed, so the program cannot give devices work; see Host.Gated
	Importers    time.Duration       // how long a pause waits for others to unmap memory, and a resume for theirs
	Unseen       bool                // the program does not know of a resume, so that waits for memory alone
	Since        uint64              // only what transitions after that have paused or resumed, or 0 for all
	Took         func(tag string)    // is told the tags of which a pause has taken memory, also before an error; or nil
	InParts      bool                // a pause with Gated gives memory back as it saves contents: see Engine.Pause
	Coming       *Coming             // memory that a resume lacks is on its way; or nil
	Order        *Order              // a resume brings memory back step by step; or nil
	Asked        time.Time           // when the caller began to wait, for the program or for memory; or zero
}

// MakeRoom asks for bytes of a device's memory, and reports whether a resume is to try again at once.
type MakeRoom func(ordinal int, bytes uint64) bool

// operation is a pause, resume, move or compaction in progress. It makes one transition after another until it is done.
type operation struct {
	Options
	name      string
	number    uint64 // as Transition has it
	spent     spent
	discarded store.Discarded // contents that a resume, or a pause with Discard, gives up
	awaited   time.Duration   // for memory on its way, of which the resume is no slower

	step      int              // of an order; after the first, memory is mapped at its addresses only with its contents
	at        map[*segment]int // the step of an order at which it comes back, where that is not the first
	postpones bool             // what a resume does not keep is given up when all is back:
	postponed []store.Contents // this
}

// batch is a device's part in a transition. From begin to end its segments and extents belong to it, and others see
// the segments as they were before.
type batch struct {
	device   *device
	segments []*segment // by address
	extents  []*extent  // that they have, or get, by address
	job      store.Job  // for a backup store
	progress *progress
	moved    uint64        // bytes of device memory that a pause gave back, or a resume took
	held     uint64        // of these, bytes that its extents have
	copying  time.Duration // spent on contents

	waiting time.Duration // for memory that is on its way
	room    uint64        // bytes that were free when it last looked, and are not taken

	asides []func()  // end mappings that a resume made for contents alone
	later  []*extent // that get their memory now, and come back at later steps of the order

	back  []*extent         // a resume brings their contents back from memory of the same device
	rest  part              // the contents that a pause saves,
	parts []*part           // and those whose memory it gives back before it saves the next
	of    map[*extent]*part // of parts
	given map[*extent]bool  // those that are unmapped, and given back as far as the driver does that
}

func (d *device) job() store.Job {
	return store.Job{Device: d.ordinal, Context: d.context, Node: int(d.node.Load())}
}

func (d *device) newBatch() *batch { return &batch{device: d, job: d.job(), progress: &progress{}} }

// transact is the frame of every transition: it takes its turn, claims the wanted segments, does the work on them, and
// always ends the transition. After work that succeeds it calls done with each tag.
func (e *Engine) transact(name string, o *operation, wanted func(*segment) bool, work func([]*batch) error,
	done func(*tag)) error {
	start := time.Now()
	e.takeTurn()
	defer e.transition.Unlock()
	batches := e.begin(o.Tags, wanted)
	o.spent.waited += time.Since(start)
	return e.transactOn(batches, name, o, work, done)
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

// begin makes a transition the owner of segments and their extents, and returns them by device. During the transition
// others may read a segment's state under the lock, so outcome has the state that it will get. begin waits for others'
// driver calls on the same extents: those wait neither for the device nor for a segment that begin has claimed.
func (e *Engine) begin(tags []string, wanted func(*segment) bool) (batches []*batch) {
	found := map[*device]*batch{}
	e.mu.Lock()
	e.visit(tags, func(d *device, s *segment) int {
		for s.extent != nil && s.extent.owner != nobody && s.extent.owner != aTransition && s.listed && wanted(s) {
			e.settled.Wait()
		}
		if s.owner == aTransition || !s.listed || !wanted(s) {
			return 1
		}
		b := found[d]
		if b == nil {
			b = d.newBatch()
			found[d] = b
		}
		return b.claim(s, wanted)
	})
	e.mu.Unlock()
	return e.batches(found)
}

// batches completes what begin has claimed.
func (e *Engine) batches(found map[*device]*batch) (batches []*batch) {
	budget := &store.Budget{Ledger: e.ledger}
	for _, b := range found {
		slices.SortFunc(b.segments, func(x, y *segment) int { return cmp.Compare(x.address, y.address) })
		var last *extent
		for _, s := range b.segments {
			if s.extent != nil && s.extent != last {
				last = s.extent
				b.extents = append(b.extents, last)
			}
		}
		b.job.Budget = budget // of all batches together
		b.job.Copied = func(bytes uint64) { b.progress.done.Add(bytes) }
		batches = append(batches, b)
	}
	slices.SortFunc(batches, func(x, y *batch) int { return x.device.ordinal - y.device.ordinal })
	return batches
}

// claim makes the transition the owner of a segment, of its extent, and of all wanted segments in the extent. It
// returns how many segments it has looked at. Nothing in the extent can be left for later: once others have the lock,
// slack in it may have become a segment behind those that begin has yet to visit. The caller holds the engine's lock.
func (b *batch) claim(s *segment, wanted func(*segment) bool) int {
	segments := []*segment{s}
	if x := s.extent; x != nil && x.owner == nobody {
		segments = filter(x.segments, func(s *segment) bool { return s.state != slack && wanted(s) })
		x.owner = aTransition
	}
	for _, s := range segments {
		s.owner, s.outcome = aTransition, outcome{state: s.state, saved: s.saved}
	}
	b.segments = append(b.segments, segments...)
	return len(segments)
}

// transactOn is transact for a caller that has its turn and has claimed the segments.
func (e *Engine) transactOn(batches []*batch, name string, o *operation, work func([]*batch) error,
	done func(*tag)) error {
	if len(batches) == 0 {
		return nil
	}
	for _, b := range batches {
		b.progress.operation = name
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
		o.spent.copying = max(o.spent.copying, b.copying)
		b.device.progress.Store(nil)
	}
	return err
}

// end makes the outcome of each segment its state, calls done with each tag, and wakes what waits for the transition.
// With gated, the gate holds the program's threads from what was paused.
//
// Others get e.mu at times before end returns. So an extent that has memory is given to others before its segments,
// which may be used at once, and an extent without memory after them: until then their frees wait.
func (e *Engine) end(batches []*batch, gated bool, done func(*tag)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended++
	var p pace
	for _, b := range batches {
		d := b.device
		reached := len(*d.peers.Load()) > 0
		if reached {
			e.grantLate(b)
		}
		for _, x := range b.extents {
			if x.Step == mapping.None {
				continue
			}
			x.owner = nobody
			for _, s := range x.segments {
				s.extent = x
			}
			if len(x.segments) > 1 && !x.shared {
				x.shared = true
				d.shared += x.Size
			}
			if reached {
				_ = e.grantMissing(x) // to devices that came into use after grantLate
			}
			p.yield(e, len(x.segments))
		}
		tags := map[*tag]bool{}
		for _, s := range b.segments {
			if s.gated {
				d.gated--
				s.tag.gated--
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
				s.tag.gated++
			}
			s.expose(s.outcome.state == paused && (!s.gated || s.exposed)) // see hold
			s.become(s.outcome.state)
			s.owner, s.saved, s.dead = nobody, s.outcome.saved, nil
			if s.outcome.lost {
				s.imported.lost = true
			}
			if !tags[s.tag] {
				tags[s.tag] = true
				done(s.tag)
			}
			if s.slab != nil {
				s.tag.listSlab(s)
			}
			if s.userMapped != nil {
				e.leaveUnmapped(s)
			}
			p.yield(e, 1)
		}
		for _, x := range b.extents {
			if x.owner == aTransition {
				x.owner = nobody
				e.dissolve(x)
				p.yield(e, len(x.segments))
			}
		}
	}
	e.tellPaused()
	e.settled.Broadcast()
}

// progress is how far a transition has come with the contents of a device, while it runs.
type progress struct {
	operation   string
	done, total atomic.Uint64
}

func (d *device) readProgress() *stats.Progress {
	p := d.progress.Load()
	if p == nil {
		return nil
	}
	return &stats.Progress{Device: d.ordinal, Operation: p.operation, Done: p.done.Load(), Total: p.total.Load()}
}

// filter lists the items of a list that keep picks.
func filter[T any](list []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(one T) bool { return !keep(one) })
}
