package vmm

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"tms/internal/guard"
	"tms/internal/hostmemory"
	"tms/vmm/backup"
	"tms/vmm/backup/disk"
	"tms/vmm/backup/host"
	"tms/vmm/backup/peer"
	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/space"
)

// Engine is safe for use by many threads.
type Engine struct {
	driver          *cuda.Driver
	host            *host.Store
	disk            *disk.Store
	peer            *peer.Store
	hasher          *digest.Hasher
	contexts        Contexts
	compactor       Compactor
	withoutCaptures func(f func() error) error
	warn            func(string)
	holders         func(uuid string) string
	waits           sync.Map // the tags of resumes that wait for memory, or did so until they failed

	shareable bool
	ledger    *hostmemory.Ledger
	offersAt  Offers

	whenUngated func()           // called with mu held
	whenExposed func(bool)       // likewise
	observe     func(Transition) // called with no lock held
	transitions atomic.Uint64    // so far, also those that failed

	cannotHash sync.Once // for its warning

	counting sync.Mutex // of one look at all for the statistics, before mu
	counted  uint64     // such looks so far, guarded by it

	transition sync.Mutex // of pauses, resumes, moves, preparations and resets

	// mu guards everything below. The package comment says when it is held.
	mu        lock
	settled   sync.Cond // a pause, resume or preparation, or the loading of a kernel, has ended
	devices   map[int]*device
	space     *space.Space[segment]
	pending   pendingFrees
	offers    map[uintptr]offered // by the allocation's address
	loading   int                 // kernels of the content hash
	preparing int                 // preparations that were asked for and are not done
	names     map[string]bool     // tags that were ever used
	unknown   map[[2]string]bool  // operations and names that were warned of
	totals    map[int]*totals     // by device; a reset does not set them back

	userMapped userMappings
	sharing    sharing

	ended uint64 // transitions so far, by which segments and tags know their last

	gating   bool // something is paused, or was when whenUngated was last called, by a pause that was gated
	exposing bool // as whenExposed was last told

	waitingAside atomic.Bool // a thread is in awaitContextAside

	checking atomic.Bool // see CheckInvariants
}

// New returns an engine on a driver. It holds a lock when it calls announce with the address range of each new arena;
// an error from announce fails the allocation.
func New(driver *cuda.Driver, announce func(base uintptr, size uint64) error) *Engine {
	e := &Engine{
		driver:   driver,
		host:     host.New(driver),
		hasher:   digest.New(driver),
		space:    space.New[segment](driver, announce),
		contexts: func(int, func(cuda.Context) error) error { return nil },

		compactor: noCompactor{},
		warn:      func(string) {},
		holders:   func(string) string { return "" },

		withoutCaptures: func(f func() error) error { return f() },

		whenUngated: func() {},
		whenExposed: func(bool) {},
		observe:     func(Transition) {},

		devices:    map[int]*device{},
		offers:     map[uintptr]offered{},
		pending:    pendingFrees{lines: map[*line]bool{}, wake: make(chan struct{}, 1)},
		names:      map[string]bool{},
		unknown:    map[[2]string]bool{},
		totals:     map[int]*totals{},
		userMapped: userMappings{known: map[cuda.Handle]*segment{}},
		sharing: sharing{shares: map[uint64]*segment{}, imports: map[importKey]*segment{},
			opening: map[importKey]bool{}, importers: map[uint64][]Importer{}},
	}
	told := func(line string) { e.warn(line) }
	e.disk, e.peer = disk.New(driver, told), peer.New(driver, e.host, told)
	e.mu.locked = func() { e.takeOffers(false) }
	e.settled.L = &e.mu
	return e
}

// unlocked makes a call without e.mu, which the caller holds. A panic in the call becomes an error.
func (e *Engine) unlocked(call func() error) error {
	e.mu.Unlock()
	defer e.mu.Lock()
	return guard.Call(call)
}

// device returns what is known about a device. The caller holds e.mu.
func (e *Engine) device(ordinal int) (*device, error) {
	if d := e.devices[ordinal]; d != nil {
		return d, nil
	}
	d, err := newDevice(e.driver, ordinal)
	if err == nil {
		d.space = e.space
		if !e.shareable {
			d.shareable.Store(false)
		}
		e.devices[ordinal] = d
	}
	return d, err
}

// Shareable sets whether to make memory that can be exported to other processes, where devices can do that: by Share,
// or by the program itself (cuMemRetainAllocationHandle, cuMemExportToShareableHandle). Call it before anything else. A
// process that got memory from the program keeps it over a pause, so that memory is not free until the process releases
// it; the segment gets new memory at the resume. Such memory is the segment's alone only if its extent is: see
// Options.ExtentBytes.
func (e *Engine) Shareable(on bool) { e.shareable = on }

// Descriptors sets what keeps the descriptors of files with contents, and of contents for Options.Toward. Call it before
// anything else.
func (e *Engine) Descriptors(kept backup.Descriptors) {
	e.disk.Descriptors, e.peer.Descriptors = kept, kept
}

// Extents sets where contents for host memory go as long as there is room. Call it before anything else.
func (e *Engine) Extents(extents peer.Extents) { e.peer.Extents = extents }

// Ledger sets where transitions promise the host memory that they are about to take. Call it before anything else.
func (e *Engine) Ledger(l *hostmemory.Ledger) { e.ledger = l }

// NotePool notes for the statistics that a pool of this library has taken bytes of a device's memory from CUDA itself,
// or has given them back if bytes is negative.
func (e *Engine) NotePool(ordinal int, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d, err := e.device(ordinal); err == nil {
		d.pools += bytes
	}
}

// known lists the devices.
func (e *Engine) known() []*device {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.devices))
}

// Contexts sets how the engine finds the contexts that the program makes. Call it before anything else.
func (e *Engine) Contexts(contexts Contexts) { e.contexts = contexts }

// Warn sets the function that gets a line for the user's log, which is rare. Call it before anything else.
func (e *Engine) Warn(warn func(string)) { e.warn = warn }
