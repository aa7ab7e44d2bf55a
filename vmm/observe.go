package vmm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tms/vmm/stats"
)

// Transition is what an observer of the engine learns about a pause, resume or move.
type Transition struct {
	Number    uint64   // the same when it begins and when it is over, from 1 on
	Operation string   // "pause", "resume" or "move"
	Tags      []string // nil: every tag
	Over      bool     // else it begins, and nothing more is known
	Err       error
	Bytes     uint64 // of device memory given back or taken; for a move, of contents
	Copied    uint64 // bytes of contents
	// Took is the whole time, including the caller's wait for the program before. Waited is the part spent waiting for
	// the program, the devices, other operations, memory, and discarded contents; Copying is the part spent on
	// contents; the rest is the driver's work on mappings. Each counts the slowest device.
	Took, Waited, Copying time.Duration
}

// Allocation is memory that the program has: a segment, or one of the small allocations that share a segment.
type Allocation struct {
	Address uintptr
	Size    uint64 // bytes
	Device  int
	Tag     string
	Mapped  bool // by the program itself
}

// Allocations calls f with each allocation. It calls f without a lock, so some may have been freed by then.
func (r Records) Allocations(f func(Allocation)) {
	e := r.engine
	all := [][]Allocation{nil}
	add := func(a Allocation) {
		last := &all[len(all)-1]
		if *last = append(*last, a); len(*last) == 1024 { // one list for all would be copied as it grows
			all = append(all, nil)
		}
	}
	seen := map[*segment]bool{}
	e.mu.Lock()
	e.visit(nil, func(d *device, s *segment) int {
		if seen[s] || s.owner == aFree || s.isImported() || s.address == 0 { // 0: it was unmapped while paused
			return 1
		}
		if seen[s] = true; s.slab == nil {
			add(Allocation{s.address, s.size, d.ordinal, s.tag.name, s.isUserMapped()})
			return 1
		}
		s.slab.Each(func(offset uintptr, size uint64) {
			add(Allocation{s.address + offset, size, d.ordinal, s.tag.name, false})
		})
		return s.slab.Live
	})
	e.mu.Unlock()
	for _, list := range all {
		for _, a := range list {
			f(a)
		}
	}
}

// At returns the memory that the program itself has mapped at an address, and reports whether the engine knows
// it.
func (m UserMapped) At(address uintptr) (Allocation, bool) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.overlapping(address, 1)
	if s == nil || s.isImported() {
		return Allocation{}, false
	}
	return Allocation{s.address, s.size, s.device.ordinal, s.tag.name, true}, true
}

// spent is how a transition has used its time.
type spent struct {
	mu      sync.Mutex // devices are worked on at the same time
	asked   time.Time
	waited  time.Duration
	copying time.Duration
	copied  uint64
}

// copyingSince notes the time of one device: the slowest counts.
func (s *spent) copyingSince(start time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copying = max(s.copying, time.Since(start))
}

// begun reports that an operation begins. The caller reports its end by over.
func (e *Engine) begun(name string, options Options) *operation {
	start := time.Now()
	o := &operation{Options: options, name: name, number: e.transitions.Add(1), spent: spent{asked: start}}
	if !o.Asked.IsZero() && o.Asked.Before(start) {
		o.spent.asked, o.spent.waited = o.Asked, start.Sub(o.Asked)
	}
	for _, tag := range o.Tags {
		e.warnUnknown(name, tag)
	}
	e.process.Observe(Transition{Number: o.number, Operation: name, Tags: o.Tags})
	return o
}

// over reports the end of an operation.
func (e *Engine) over(o *operation, bytes *uint64, err *error) {
	s := &o.spent
	e.process.Observe(Transition{Number: o.number, Operation: o.name, Tags: o.Tags, Over: true, Err: *err, Bytes: *bytes,
		Copied: s.copied, Took: time.Since(s.asked), Waited: s.waited, Copying: s.copying})
}

// totals are a device's.
type totals struct{ pauses, resumes stats.Total }

// count adds a pause or resume, which began at start and ended with err, to the totals of its devices.
func (e *Engine) count(batches []*batch, start time.Time, err error, which func(*totals) *stats.Total) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range batches {
		if e.totals[b.device.ordinal] == nil {
			e.totals[b.device.ordinal] = &totals{}
		}
		t := which(e.totals[b.device.ordinal])
		t.Bytes += b.moved // an unsuccessful pause may have given memory back, too
		if err == nil {
			t.Count++
			t.ContentsBytes += b.progress.done.Load()
			t.Seconds += time.Since(start).Seconds()
		}
	}
}

const (
	namesTold   = 8  // how many tags a warning names
	unknownTold = 16 // how many unknown tags it warns of

	namesMost = 10000 // that are remembered: a program may use a new tag for each of its steps
)

// noteName remembers a tag for Unknown. The caller holds e.mu.
func (e *Engine) noteName(tag string) {
	if len(e.names) <= namesMost {
		e.names[tag] = true
	}
}

// warnUnknown warns, once per operation and name, of a tag that is Unknown.
func (e *Engine) warnUnknown(operation, name string) {
	words := e.Records().Unknown(name)
	e.mu.Lock()
	warn := words != "" && !e.unknown[[2]string{operation, name}] && len(e.unknown) < unknownTold
	if warn {
		e.unknown[[2]string{operation, name}] = true
	}
	e.mu.Unlock()
	if warn {
		e.process.Warn(operation + ": " + words)
	}
}

// Unknown returns words about a tag with which nothing was ever allocated, most likely because it is misspelt; "" for
// any other, and where there were too many tags to remember.
func (r Records) Unknown(name string) string {
	e := r.engine
	e.mu.Lock()
	unknown := !e.names[name] && len(e.names) <= namesMost
	var known []string
	if unknown {
		known = slices.Collect(maps.Keys(e.names))
	}
	e.mu.Unlock()
	if !unknown {
		return ""
	}
	slices.Sort(known)
	var quoted []string
	for _, n := range known[:min(len(known), namesTold)] {
		quoted = append(quoted, fmt.Sprintf("%.80q", n))
	}
	if len(known) > namesTold {
		quoted = append(quoted, "...")
	}
	return fmt.Sprintf("nothing was ever allocated with tag %.80q; tags so far: %s", name, strings.Join(quoted, ", "))
}
