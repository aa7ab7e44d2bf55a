package vmm

import (
	"cmp"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/mapping"
	"tms/vmm/small"
	"tms/vmm/space"
	"tms/vmm/store"
)

// BackupKind says where a segment's contents wait while it is paused.
type BackupKind int

// The kinds of backup.
const (
	BackupNone   BackupKind = iota // nowhere: contents are lost
	BackupHost                     // in pinned host memory
	BackupDisk                     // in files
	BackupSparse                   // as BackupHost, but for blocks of zeros; of a Request
	BackupPeer                     // in the memory of another device, or of the host where that is impossible
	backupMemory                   // in files that are host memory, of a pause with ToMemory
)

// segment is whole granules of a tag, for one cudaMalloc or for the small ones that share them.
type segment struct {
	device  *device
	span    space.Span[segment] // its addresses
	address uintptr
	size    uint64 // as asked for
	tag     *tag
	index   int  // in tag.segments
	listed  bool // there
	policy
	state   state
	owner   owner
	extent  *extent              // its memory, or nil
	slab    *small.Slab          // the small allocations in it, or nil if it is one allocation
	shelved small.Place[segment] // where the tag has it as a slab with room
	free    space.Slot[segment]  // where the tag has it as slack
	backing                      // user-mapped memory has no span, of imported memory nothing is saved
	shared  uint64               // its name for other processes, or 0
	saved
	dead    store.Ranges // bytes that the next pause need not keep; see Live
	gated   bool         // a gated pause has paused it
	exposed bool         // another pause has: the program may use its addresses
	changed uint64       // the transition that paused or resumed it last
	counted uint64       // the look for the statistics that has counted it last
	outcome outcome      // of the transition that works on it
}

// length returns the size in bytes of its granules.
func (s *segment) length() uint64 {
	if s.userMapped != nil {
		return s.size
	}
	return s.span.Bytes()
}

// mapped reports whether the device may be using the segment. The caller holds the engine's lock.
func (s *segment) mapped() bool {
	return s.extent != nil && (s.extent.owner != nobody || s.extent.Step >= mapping.Mapped)
}

// is reports whether a segment is in a state, and not about to be freed.
func (s *segment) is(state state) bool { return s.state == state && s.owner != aFree }

// changedAfter reports whether a transition after that one has paused or resumed the segment; true with 0.
func (s *segment) changedAfter(transition uint64) bool {
	return transition == 0 || s.changed > transition
}

// pausable reports whether a pause has something to take from a segment. User-mapped memory stays as it is where its
// device has no access, because its contents cannot be moved then, and where others hold the memory itself. Imported
// memory has no contents to move.
func (s *segment) pausable() bool {
	return s.is(active) && (s.userMapped == nil || s.imported != nil ||
		s.userMapped.pinned == 0 && s.userMapped.access.Writable(s.device.ordinal))
}

// policy says how a segment's contents are saved while it is paused.
type policy struct {
	backup      BackupKind
	incremental bool         // the next pause copies only what has changed
	sparse      bool         // a pause keeps no blocks of zeros
	target      int          // of BackupPeer: the ordinal of the device, or -1 for any
	prompt      bool         // discarded contents are waited for
	ordered     bool         // allocated in stream order: so are all that share the segment
	context     cuda.Context // of the program's own, in which it was allocated, or 0 for the primary one
}

func (r Request) policy() policy {
	p := policy{r.Backup, r.Incremental && r.Backup == BackupHost, r.Backup == BackupSparse, r.Target, r.Prompt,
		r.Ordered, 0}
	if p.sparse {
		p.backup = BackupHost
	}
	return p
}

// backing says where memory comes from, and which side maps it. A segment and its extent have the same.
//
//	own          the engine makes the memory and maps it, as cudaMalloc does
//	user-mapped  the program makes it, or has it from another process, and maps it (usermapped.go)
//	imported     another process has made it; the engine maps it, or the program (import.go)
type backing struct {
	userMapped *userMapped
	imported   *imported
}

// own is the backing of what the engine has made itself.
var own = backing{}

// saved is where a segment's contents are, or can be, saved.
type saved struct {
	contents store.Contents // nil if they are not saved
	current  bool           // contents are those of its last pause
	sums     []digest.Sum   // of that, block by block, or nil if not known
	parts    *parts         // the parts that have contents, or nil for all
	held     bool           // it is paused, and its extent alone has what it holds; not current
}

func (s *segment) discard() {
	if s.contents != nil {
		s.contents.Discard()
	}
	s.saved = saved{}
}

type outcome struct {
	state state
	saved
	lost  bool    // of an import
	aside uintptr // where a resume maps memory that its device cannot reach, or 0
}

type state int

const (
	active state = iota
	paused       // whatever its extent still holds after an error
	slack        // free, in an extent that others still use
)

// owner is the worker on a segment, or an extent, even while e.mu is free. Others wait for settled.
type owner int

const (
	nobody      owner = iota
	aTransition       // others still see the old state; outcome has the new one
	aCall             // a driver call on an extent
	aFree             // a free, made or pending: lookups no longer find the segment
)

// tag is the segments of one device that pause and resume together.
type tag struct {
	name        string
	segments    []*segment
	ranges      *space.Ranges[segment]
	slack       space.BySize[segment]
	slabs       map[slabKind]*small.Shelves[segment] // with room for more small allocations, as far as is known
	lines       map[cuda.Order]*line                 // frees in the order of streams
	recent      *line                                // of lines, the last that was looked for, or nil
	idle        shelf                                // those that their streams have reached
	lastPause   float64                              // seconds
	lastResume  float64
	pausedSince float64 // seconds since 1970
	pausedBy    uint64  // see PausedBy, or 0 if nothing is paused
	paused      int     // segments that are paused
	gated       int     // segments that are paused by a gated pause
}

func (d *device) newTag(name string) *tag {
	ranges := d.space.NewRanges(space.Device{Ordinal: d.ordinal, Granularity: d.granularity, Total: d.total})
	return &tag{name: name, ranges: ranges, slabs: map[slabKind]*small.Shelves[segment]{},
		lines: map[cuda.Order]*line{}}
}

func (d *device) tag(name string) *tag {
	t := d.tags[name]
	if t == nil {
		t = d.newTag(name)
		d.tags[name] = t
	}
	return t
}

// isEmpty reports whether a tag has neither segments nor addresses. The table has such a tag only while e.mu is held.
func (t *tag) isEmpty() bool { return t.ranges.Empty() && len(t.segments) == 0 }

// retire forgets a tag that has nothing left: a program may use a new tag for each of its steps.
func (d *device) retire(t *tag) {
	if t.isEmpty() && d.tags[t.name] == t {
		delete(d.tags, t.name)
		d.dropLines(t)
	}
}

func (t *tag) add(s *segment) {
	s.device.count(s, int64(s.length()))
	s.tag, s.index, s.listed = t, len(t.segments), true
	if s.state == paused {
		t.paused++
	}
	t.segments = append(t.segments, s)
}

func (t *tag) remove(s *segment) {
	if s.gated {
		s.gated = false // it may become slack, and serve an allocation later
		s.device.gated--
		t.gated--
	}
	if s.state == paused {
		t.lessPaused()
	}
	s.expose(false)
	delete(s.device.woken, s)
	s.device.count(s, -int64(s.length()))
	last := len(t.segments) - 1
	t.segments[s.index], t.segments[last].index = t.segments[last], s.index
	t.segments = slices.Delete(t.segments, last, last+1)
	s.listed = false
}

// become changes the state of a segment. The caller holds the engine's lock.
func (s *segment) become(state state) {
	if s.listed && s.state != state {
		if state == paused {
			s.tag.paused++
		} else if s.state == paused {
			s.tag.lessPaused()
		}
	}
	s.state = state
}

// slabKind is what an allocation asks of a slab.
type slabKind struct {
	policy
	paused bool
}

// listSlab notes how much room a slab has, and whether it is paused.
func (t *tag) listSlab(s *segment) {
	kind := slabKind{s.policy, s.state == paused}
	if t.slabs[kind] == nil {
		t.slabs[kind] = &small.Shelves[segment]{}
	}
	t.slabs[kind].Put(&s.shelved, s, s.slab)
}

func (t *tag) lessPaused() {
	if t.paused--; t.paused == 0 {
		t.pausedBy = 0
	}
}

// expose notes whether a segment is exposed. The caller holds the engine's lock.
func (s *segment) expose(now bool) {
	switch {
	case now && !s.exposed:
		s.device.exposed++
	case !now && s.exposed:
		s.device.exposed--
	}
	s.exposed = now
}

// tellPaused is called after anything that may have ended the last gated pause, or changed whether something is
// exposed. The caller holds e.mu.
func (e *Engine) tellPaused() {
	gated, exposed := 0, 0
	for _, d := range e.devices {
		gated += d.gated
		exposed += d.exposed
	}
	if was := e.exposing; was != (exposed > 0) {
		e.exposing = !was
		e.process.Exposed(e.exposing)
	}
	if was := e.gating; was != (gated > 0) {
		e.gating = !was
		e.process.Gated(e.gating)
	}
}

// count notes a segment's memory. The caller holds the engine's lock.
func (d *device) count(s *segment, bytes int64) {
	if s.backing != own {
		return
	}
	d.quota.Gain(uint64(bytes))
	if s.ordered {
		d.ordered.reserved += uint64(bytes)
		d.ordered.reservedHigh = max(d.ordered.reservedHigh, d.ordered.reserved)
	}
}

// addSlack notes a free segment whose memory cannot be released alone, and joins it with the slack beside it.
func (t *tag) addSlack(s *segment) {
	x := s.extent
	at, _ := slices.BinarySearchFunc(x.segments, s.address, compareAddress)
	if next := at + 1; next < len(x.segments) && x.segments[next].state == slack {
		t.removeSlack(x.segments[next])
		s.span.Join(x.segments[next].span)
		x.segments = slices.Delete(x.segments, next, next+1)
	}
	if last := at - 1; last >= 0 && x.segments[last].state == slack {
		t.removeSlack(x.segments[last])
		x.segments[last].span.Join(s.span)
		s = x.segments[last]
		x.segments = slices.Delete(x.segments, at, at+1)
	}
	t.listSlack(s)
}

func (t *tag) listSlack(s *segment) {
	s.state, s.owner, s.policy, s.outcome = slack, nobody, policy{}, outcome{state: slack}
	s.device.count(s, int64(s.length()))
	t.slack.Put(&s.free, s, s.span.Room(), s.span.Granules())
}

func (t *tag) removeSlack(s *segment) {
	s.device.count(s, -int64(s.length()))
	s.free.Take()
}

// takeSlack returns a segment of that many granules that already has its memory, split from the smallest slack in the
// room that is large enough; nil if there is none.
func (t *tag) takeSlack(granules uint32, room *space.Room) *segment {
	best := t.slack.Find(granules, room, func(s *segment) bool {
		return s.extent.owner == nobody && s.extent.Step == mapping.Accessible
	})
	if best == nil {
		return nil
	}
	t.removeSlack(best)
	x := best.extent
	x.live++
	if best.span.Granules() > granules {
		rest := &segment{device: best.device, tag: t, extent: x, span: best.span.Split(granules)}
		rest.address = rest.span.Address()
		at, _ := slices.BinarySearchFunc(x.segments, best.address, compareAddress)
		x.segments = slices.Insert(x.segments, at+1, rest)
		t.listSlack(rest)
	}
	return best
}

// newSegment finds addresses for a segment of a tag. With inSlab, small allocations are to share the segment. The
// caller holds e.mu.
func (e *Engine) newSegment(d *device, t *tag, granules uint32, inSlab bool, room *space.Room) (*segment, error) {
	span, err := t.ranges.Allocate(granules, inSlab, room)
	if err != nil {
		d.retire(t)
		return nil, err
	}
	return &segment{device: d, tag: t, span: span, address: span.Address()}, nil
}

// enter adds a new segment to its tag, where others find it, unless its device was reset since. Then enter ends it. The
// caller holds e.mu, which is released for driver calls.
func (e *Engine) enter(s *segment) error {
	s.span.Enter(s)
	s.tag.add(s)
	if e.devices[s.device.ordinal] == s.device {
		return nil
	}
	s.owner = aFree
	e.dropOrPutOff(s)
	return errReset
}

// errReset is for a device that was reset while memory of it was being made. No call would find that memory.
var errReset = cuda.Refuse(cuda.NotReady, "the device was reset during the call; call again")

// abandon ends a segment whose extent could not be made; where the driver refuses to undo it, a free does so later.
func (e *Engine) abandon(s *segment, x *extent, err error) {
	if x.Step == mapping.None {
		s.vacate()
		return
	}
	s.state, s.owner, s.extent = paused, aFree, x
	s.span.Enter(s)
	s.tag.add(s)
	e.putOff(pendingFree{allocation: allocation{segment: s}, stage: refused, why: refusedPrefix + err.Error()})
}

func (s *segment) vacate() {
	s.span.Release()
	s.device.retire(s.tag)
}

// drop ends a claimed allocation that the devices are done with. The caller holds e.mu, which is released for driver
// calls. After an error the segment, or block, is still there and claimed.
func (e *Engine) drop(a allocation) error {
	s := a.segment

	// A small allocation goes alone, unless it is the last of its slab: then it claims the slab, which goes as a whole.
	if a.small {
		for s.slab != nil && s.owner == aTransition && s.slab.Live == 1 {
			e.settled.Wait()
		}
		if s.slab == nil || s.owner == aFree && s.slab.Live == 1 {
			return nil // a reset of the device has taken all of it, or takes it now
		}
		if s.slab.Live > 1 {
			s.slab.Free(a.offset)
			s.tag.listSlab(s)
			return nil
		}
		s.owner = aFree // nothing else is in it
		s.shelved.Take()
	}

	// Memory that others in the extent still use becomes slack. Any other goes back to the driver.
	for s.extent != nil && s.extent.owner != nobody {
		e.settled.Wait()
	}
	x := s.extent
	if x != nil && x.live > 1 {
		x.live--
		e.forget(s)
		s.tag.addSlack(s)
		return nil
	}
	if x != nil {
		if err := e.engage([]*extent{x}, x.Unmap); err != nil {
			if a.small {
				s.reinstate()
				s.tag.listSlab(s)
			}
			return err
		}
		e.dissolve(x)
	}
	e.forget(s)
	s.vacate()
	return nil
}

// forget takes a segment out of what lookups, pauses and resumes find.
func (e *Engine) forget(s *segment) {
	s.span.Enter(nil)
	s.tag.remove(s)
	e.sharing.forget(s)
	s.discard()
	s.slab = nil
	if e.gating || e.exposing {
		e.tellPaused()
	}
}

func (s *segment) reinstate() {
	if s.owner = nobody; s.extent == nil || s.extent.Step < mapping.Accessible {
		s.become(paused) // it was paused before, or a pause of others in its extent has taken the memory
	}
}

// dropOrPutOff ends a segment that the caller has marked as being freed; what the driver refuses is done later. The
// caller holds e.mu, which is released for driver calls.
func (e *Engine) dropOrPutOff(s *segment) {
	a := allocation{segment: s}
	if err := e.drop(a); err != nil {
		e.putOff(pendingFree{allocation: a, stage: refused, why: refusedPrefix + err.Error()})
	}
}

// dissolve separates the segments from an extent that no longer has memory; its slack is gone with the memory.
func (e *Engine) dissolve(x *extent) {
	for _, s := range x.segments {
		if s.extent != x { // a compaction has put another in its place
			continue
		}
		if s.extent = nil; s.state == slack {
			s.tag.removeSlack(s)
			s.vacate()
		}
	}
	if x.shared {
		x.shared = false
		x.device.shared -= x.Size
	}
	if len(x.exports) > 0 {
		e.sharing.importers.Forget(x.exports...)
		x.exports = nil
	}
}

func compareAddress(s *segment, address uintptr) int { return cmp.Compare(s.address, address) }

// engage makes a driver call on extents, and owns them during the call. The caller holds e.mu, which is released for
// the call.
func (e *Engine) engage(extents []*extent, call func() error) error {
	for _, x := range extents {
		x.owner = aCall
	}
	err := e.unlocked(call)
	for _, x := range extents {
		x.owner = nobody
	}
	e.settled.Broadcast()
	return err
}

// leaveUnmapped takes user-mapped memory that is active, and not mapped, out of its tag: no pause can save its
// contents. Paused memory stays in its tag, because a resume is to make it. The caller holds e.mu.
func (e *Engine) leaveUnmapped(s *segment) {
	if !s.userMapped.mapped && s.imported == nil && s.state == active && s.listed {
		s.discard() // the memory itself has what it holds
		s.tag.remove(s)
		s.device.retire(s.tag)
	}
}

// forget drops the name of a freed segment. An importer has its whole extent mapped, and stays listed until that goes.
// The caller holds the engine's lock.
func (s *sharing) forget(freed *segment) {
	if freed.shared != 0 {
		delete(s.shares, freed.shared)
		if freed.extent != nil && freed.userMapped == nil { // no process gets it any more; it stays listed for importers
			freed.extent.exports = slices.DeleteFunc(append(freed.extent.exports, freed.shared),
				func(id uint64) bool { return !s.importers.Has(id) })
		} else {
			s.importers.Forget(freed.shared)
		}
		freed.shared = 0
	}
	if freed.imported != nil && s.imports[freed.imported.key(freed)] == freed {
		delete(s.imports, freed.imported.key(freed))
	}
}

func (i *imported) key(s *segment) importKey {
	key := importKey{share: i.share, ordinal: s.device.ordinal}
	if s.userMapped != nil {
		key.handle = s.userMapped.handle
	}
	return key
}
