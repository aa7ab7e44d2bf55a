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

// Options of a pause or resume.
type Options struct {
	Tags         []string            // nil for every tag
	RetainBackup bool                // keep host copies after resume
	Discard      bool                // a pause saves no contents, and gives up those that earlier pauses kept
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
	Unseen       bool                // the program does not know of a resume, so that waits for memory alone: see discarded
	Since        uint64              // only what transitions after that have paused or resumed, or 0 for all
	Asked        time.Time           // when the caller began to wait, for the program or for memory; or zero
}

// means reports whether the options mean a segment, by Since.
func (o *Options) means(s *segment) bool { return o.Since == 0 || s.changed > o.Since }

// MakeRoom asks for bytes of a device's memory, and reports whether a resume is to try again at once.
type MakeRoom func(ordinal int, bytes uint64) bool

// operation is a pause, resume, move or compaction in progress. It makes one transition after another until it is done.
type operation struct {
	Options
	name      string
	number    uint64 // as Transition has it
	spent     spent
	discarded discarded // contents that a resume, or a pause with Discard, gives up
}

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
	if len(known) == 0 {
		return fmt.Sprintf("nothing was ever allocated with tag %.80q, nor with any other", name)
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
