package vmm

import (
	"runtime"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/store"
)

// TestHost is a Host of which a test replaces what it is about, also while the engine lives.
type TestHost struct {
	Solitary
	compactor Compactor
	processes Processes
	warn      func(string)
	holders   func(string) string
	announce  func(base uintptr, size uint64) error
	gated     func(bool)
	exposed   func(bool)
	offers    Offers
	observe   func(Transition)
}

// NewOn returns an engine with a TestHost.
func NewOn(driver *cuda.Driver) *Engine { return New(driver, &TestHost{}, Settings{}) }

// HostOf returns the TestHost of an engine.
func HostOf(e *Engine) *TestHost { return e.process.(*TestHost) }

// SetCompactor has memory moved by c.
func (h *TestHost) SetCompactor(c Compactor) { h.compactor = c }

// SetProcesses has other processes reached by p.
func (h *TestHost) SetProcesses(p Processes) { h.processes = p }

// SetWarn has lines of the log passed to warn.
func (h *TestHost) SetWarn(warn func(string)) { h.warn = warn }

// SetHolders has holders named by name.
func (h *TestHost) SetHolders(name func(uuid string) string) { h.holders = name }

// SetAnnounce has arenas announced to announce.
func (h *TestHost) SetAnnounce(announce func(base uintptr, size uint64) error) { h.announce = announce }

// SetGated has call called when gated pauses begin, or no longer, to keep something paused.
func (h *TestHost) SetGated(call func(bool)) { h.gated = call }

// SetExposed has call called when memory becomes exposed, or is no longer.
func (h *TestHost) SetExposed(call func(bool)) { h.exposed = call }

// SetObserve has transitions reported to observe.
func (h *TestHost) SetObserve(observe func(Transition)) { h.observe = observe }

func (h *TestHost) Observe(of Transition) {
	if h.observe != nil {
		h.observe(of)
	}
}

// SetOffers has offers made at a place.
func (h *TestHost) SetOffers(at Offers) { h.offers = at }

func (h *TestHost) CanCompact() bool { return h.compactor != nil && h.compactor.CanCompact() }

func (h *TestHost) Compact(ordinal int) error { return h.compactor.Compact(ordinal) }

func (h *TestHost) Fetch(share Share, number uint64) (Export, error) {
	return h.processes.Fetch(share, number)
}

func (h *TestHost) Return(share Share, number uint64) error { return h.processes.Return(share, number) }

func (h *TestHost) Gone(importer Importer) bool { return h.processes.Gone(importer) }

func (h *TestHost) Warn(line string) {
	if h.warn != nil {
		h.warn(line)
	}
}

func (h *TestHost) Holders(uuid string) string {
	if h.holders == nil {
		return ""
	}
	return h.holders(uuid)
}

func (h *TestHost) Announce(base uintptr, size uint64) error {
	if h.announce == nil {
		return nil
	}
	return h.announce(base, size)
}

func (h *TestHost) Gated(now bool) {
	if h.gated != nil {
		h.gated(now)
	}
}

func (h *TestHost) Exposed(now bool) {
	if h.exposed != nil {
		h.exposed(now)
	}
}

func (h *TestHost) TakeOffer(offer int, ifFreed bool) Taken {
	if h.offers == nil {
		return TakenLive
	}
	return h.offers.TakeOffer(offer, ifFreed)
}

// UseDescriptors has the stores keep descriptors in another place from now on.
func (e *Engine) UseDescriptors(d store.Descriptors) {
	e.disk.Descriptors, e.memory.Descriptors, e.peer.Descriptors = d, d, d
}

// UseReserved has contents go to reserved memory from now on.
func (e *Engine) UseReserved(extents store.Reserve) { e.peer.Reserve = extents }

// Shareable is Settings.Shareable for what is done from now on.
func (e *Engine) Shareable(on bool) { e.shareable = on }

// CheckInvariants is Settings.Invariants for what is done from now on.
func (e *Engine) CheckInvariants(on bool) { e.checking.Store(on) }

// Move is Spill to BackupDisk, and else Fetch.
func (e *Engine) Move(o Options, to BackupKind) (uint64, error) {
	if to == BackupDisk {
		return e.Spill(o)
	}
	return e.Fetch(o)
}

// PausedAt reports whether the allocation at an address is paused, or lost its memory in a free that got half way. That
// memory may still be mapped after two failures.
func (e *Engine) PausedAt(address uintptr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.around(address).segment
	return s != nil && s.state == paused
}

// Drain waits for the background work, most of which gives back device and host memory.
func (e *Engine) Drain() {
	e.mu.Lock()
	for {
		e.pollAll()
		frees := e.pendingOf(func(d *device) bool { return e.devices[d.ordinal] == d })
		e.finish(slices.DeleteFunc(frees, func(f *pendingFree) bool { return f.stage == onStream }))
		e.giveBackIdle(func(*device, *pendingFree) (uint64, bool) { return 0, true })
		if e.pending.at[due].length == 0 && len(e.pending.lines) == 0 {
			break
		}
		e.mu.Unlock() // the reaper may be asking a stream, and needs it to go on
		runtime.Gosched()
		e.mu.Lock()
	}
	e.mu.Unlock()
	e.hasher.AwaitLoads()
	e.driver.Reclaim.Drain()
}

// TieWaiting ties the frees that wait for the end of a capture into a loop without an end, until
// the function that it returns is called.
func (e *Engine) TieWaiting() (untie func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first := e.pending.at[unwaited].first
	next := first.next
	first.next = first
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		first.next = next
	}
}

// Compactable returns how many bytes of a device's slack a compaction could give back.
func (e *Engine) Compactable(ordinal int) uint64 {
	return e.compactable(ordinal)
}

// Driver returns the engine's.
func (e *Engine) Driver() *cuda.Driver { return e.driver }

// ExportNames returns how many names of freed segments the extents remember.
func (e *Engine) ExportNames() (count int) {
	seen := map[*extent]bool{}
	for _, s := range e.choose(nil, func(s *segment) bool { return s.extent != nil }) {
		if !seen[s.extent] {
			seen[s.extent] = true
			count += len(s.extent.exports)
		}
	}
	return count
}

// Stride sets how many segments are walked through at once, and returns what it was.
func Stride(segments int) (before int) {
	before, stride = stride, segments
	return before
}

// PartBytes sets how much a pause InParts gives back at once, and returns what it was.
func PartBytes(bytes uint64) (before uint64) {
	before, partBytes = partBytes, bytes
	return before
}

// WatchLock sets the function that is called when the engine's lock is taken, and when it is let go.
func WatchLock(watch func(taken bool)) { lockWatched = watch }

// LookAtNeeds does what a Resume with Retried does first.
func (e *Engine) LookAtNeeds() {
	e.needs(e.choose(nil, func(s *segment) bool { return s.is(paused) }))
}

// Names returns how many tags, lines, pending frees and known things the engine remembers.
func (e *Engine) Names() (count int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		count += len(d.tags)
	}
	return count + e.names.Len()
}

// Transitions of these tests are interrupted at every other segment.
func init() { stride = 2 }

// TimesMost sets how many times memory comes back, at most, in a resume with an order, and returns what it was.
func TimesMost(times uint64) (before uint64) {
	before, timesMost = timesMost, times
	return before
}
