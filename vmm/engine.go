package vmm

import (
	"sync"
	"sync/atomic"

	"tms/internal/aid/guard"
	"tms/internal/machine/hostmemory"
	"tms/vmm/cuda"
	"tms/vmm/digest"
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

	transitions atomic.Uint64 // so far, also those that failed

	cannotHash sync.Once // for its warning
	toldOfHost sync.Once // that a device has no memory of its own
	noted      sync.Map  // the tags of resumes that wait for memory, or did so until they failed

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

	gating   bool // gated pauses keep something paused, as Host.Gated was told last
	exposing bool // as Host.Exposed was last told

	waitingAside atomic.Bool // a thread is in awaitContextAside

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
		pending:    pendingFrees{lines: map[*line]bool{}, wake: make(chan struct{}, 1)},
		names:      map[string]bool{},
		unknown:    map[[2]string]bool{},
		totals:     map[int]*totals{},
		userMapped: userMappings{known: map[cuda.Handle]*segment{}},
		sharing: sharing{shares: map[uint64]*segment{}, imports: map[importKey]*segment{},
			opening: map[importKey]bool{}, importers: map[uint64][]Importer{}},
	}
	e.disk = store.NewDisk(driver, process.Descriptors(), process.Warn)
	e.memory = store.NewMemory(driver, process.Descriptors())
	e.peer = store.NewPeer(driver, process.Descriptors(), process.Reserved(), e.host, process.Warn)
	e.mu.locked = func() { e.takeOffers(false) }
	e.settled.L = &e.mu
	e.checking.Store(settings.Invariants)
	return e
}

// unlocked makes a call without e.mu, which the caller holds. A panic in the call becomes an error.
func (e *Engine) unlocked(call func() error) error {
	e.mu.Unlock()
	defer e.mu.Lock()
	return guard.Call(call)
}
