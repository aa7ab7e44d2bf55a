package vmm

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"tms/internal/aid/guard"
	"tms/internal/machine/hostmemory"
	"tms/vmm/contexts"
	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/names"
	"tms/vmm/reclaim"
	"tms/vmm/space"
	"tms/vmm/store"
)

// Engine is safe for use by many threads.
type Engine struct {
	driver    *cuda.Driver
	process   Host
	shareable bool
	host      *store.Private
	disk      *store.Disk
	memory    *store.Disk // files that are host memory
	peer      *store.Peer
	hasher    *digest.Hasher
	ledger    *hostmemory.Ledger
	contexts  *contexts.Contexts

	transitions atomic.Uint64 // so far, also those that failed

	names      names.Known // the tags that were ever used
	cannotHash sync.Once   // for its warning
	toldOfHost sync.Once   // that a device has no memory of its own
	noted      sync.Map    // the tags of resumes that wait for memory, or did so until they failed

	counting sync.Mutex // of one look at all for the statistics, before mu
	counted  uint64     // such looks so far, guarded by it

	transition sync.Mutex // of pauses, resumes, moves, preparations and resets

	// mu guards everything below. The package comment says when it is held.
	mu        lock
	settled   sync.Cond // a pause, resume or preparation has ended
	devices   map[int]*device
	space     *space.Space[segment]
	pending   pendingFrees
	offers    map[uintptr]offered // by the allocation's address
	preparing int                 // preparations that were asked for and are not done
	totals    map[int]*totals     // by device; a reset does not set them back

	userMapped userMappings
	sharing    sharing

	ended uint64 // transitions so far, by which segments and tags know their last

	gating   bool // gated pauses keep something paused, as Host.Gated was told last
	exposing bool // as Host.Exposed was last told

	checking atomic.Bool // Settings.Invariants
}

// New returns an engine on a driver, for the process that it lives in.
func New(driver *cuda.Driver, process Host, settings Settings) *Engine {
	e := &Engine{
		driver:     driver,
		process:    process,
		shareable:  settings.Shareable,
		host:       store.NewPrivate(driver),
		hasher:     digest.New(driver),
		ledger:     process.Ledger(),
		space:      space.New[segment](driver, process.Announce),
		devices:    map[int]*device{},
		offers:     map[uintptr]offered{},
		pending:    pendingFrees{lines: map[*line]bool{}},
		totals:     map[int]*totals{},
		userMapped: userMappings{known: map[cuda.Handle]*segment{}},
		sharing: sharing{shares: map[uint64]*segment{}, imports: map[importKey]*segment{},
			opening: map[importKey]bool{}},
	}
	e.disk = store.NewDisk(driver, process.Descriptors(), process.Warn)
	e.memory = store.NewMemory(driver, process.Descriptors())
	e.peer = store.NewPeer(driver, process.Descriptors(), process.Reserved(), e.host, process.Warn)
	e.pending.reaper = reclaim.NewThread(e.reap)
	e.mu.locked = func() { e.takeOffers(false) }
	e.settled.L = &e.mu
	e.contexts = contexts.New(driver, process, func(ordinal int) cuda.Context {
		e.mu.Lock()
		defer e.mu.Unlock()
		if d := e.devices[ordinal]; d != nil {
			return d.context
		}
		return 0
	})
	e.checking.Store(settings.Invariants)
	return e
}

// unlocked makes a call without e.mu, which the caller holds. A panic in the call becomes an error.
func (e *Engine) unlocked(call func() error) error {
	e.mu.Unlock()
	defer e.mu.Lock()
	return guard.Call(call)
}

// lock is the engine's lock. To take it takes all offers back (ordered.go), so that the records are true.
type lock struct {
	sync.Mutex
	locked func() // called with the lock taken
}

// lockWatched is called by the thread that holds a lock, when it has taken the lock and when it is about to let it go.
// Tests alone set it.
var lockWatched func(taken bool)

func watchLock(taken bool) {
	if lockWatched != nil {
		lockWatched(taken)
	}
}

func (l *lock) Lock() {
	l.Mutex.Lock()
	watchLock(true)
	l.locked()
}

// lockAlone leaves the offers where they are.
func (l *lock) lockAlone() {
	l.Mutex.Lock()
	watchLock(true)
}

func (l *lock) TryLock() bool {
	locked := l.Mutex.TryLock()
	if locked {
		watchLock(true)
		l.locked()
	}
	return locked
}

func (l *lock) Unlock() {
	watchLock(false)
	l.Mutex.Unlock()
}

// An engine allocates, frees, pauses and resumes. Four faces over the same records have the rest.

// UserMapped is the program's own virtual memory: what cuMemCreate made in a region, and its mappings.
type UserMapped struct{ engine *Engine }

// UserMapped returns what the engine knows of memory that the program maps itself.
func (e *Engine) UserMapped() UserMapped { return UserMapped{e} }

// Shared is memory that several processes have, of a process or of a set.
type Shared struct{ engine *Engine }

// Shared returns what the engine knows of memory that several processes have.
func (e *Engine) Shared() Shared { return Shared{e} }

// Ordered is memory that is allocated and freed in the order of a stream.
type Ordered struct{ engine *Engine }

// Ordered returns what the engine knows of memory in the order of streams.
func (e *Engine) Ordered() Ordered { return Ordered{e} }

// Records are what the engine says of its memory. Nothing here changes anything.
type Records struct{ engine *Engine }

// Records returns what can be read of the engine.
func (e *Engine) Records() Records { return Records{e} }

// stride is how many segments are walked through before others get e.mu: a program has hundreds of thousands, and its
// allocations wait for e.mu.
var stride = 256

// pace counts what was walked through since others could have e.mu.
type pace int

// yield notes that segments were walked through, and reports whether it has let others have e.mu. The caller holds
// e.mu.
func (p *pace) yield(e *Engine, segments int) bool {
	if *p += pace(segments); int(*p) < stride {
		return false
	}
	*p = 0
	e.mu.Unlock()
	e.auditQuietly()
	e.mu.Lock()
	return true
}

// visit calls f with the segments that have the tags (nil: every tag); f returns how many segments it has looked at.
// The caller holds e.mu, which is released at times. So f may miss what is made or goes after visit has begun, and may
// get a segment twice.
func (e *Engine) visit(tags []string, f func(*device, *segment) int) {
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		if tags == nil {
			for _, t := range d.tags { // a map may change while it is gone through
				p.yield(e, 1)
				t.visit(e, &p, func(s *segment) int { return f(d, s) })
			}
		}
		for i, name := range tags {
			if t := d.tags[name]; t != nil && !slices.Contains(tags[:i], name) {
				t.visit(e, &p, func(s *segment) int { return f(d, s) })
			}
		}
	}
}

// visit is Engine.visit of one tag. It gets all other segments, because it walks the list from the end, and the last of
// the list replaces a segment that goes.
func (t *tag) visit(e *Engine, p *pace, f func(*segment) int) {
	for i := len(t.segments) - 1; i >= 0; i = min(i, len(t.segments)) - 1 {
		p.yield(e, f(t.segments[i]))
	}
}

// choose lists the segments with the tags (nil: every tag) that are wanted. It claims nothing: they may go, or become
// something else, at any time.
func (e *Engine) choose(tags []string, wanted func(*segment) bool) (found []*segment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := map[*segment]bool{}
	e.visit(tags, func(_ *device, s *segment) int {
		if wanted(s) && !seen[s] {
			seen[s] = true
			found = append(found, s)
		}
		return 1
	})
	return found
}
