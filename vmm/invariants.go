package vmm

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/mapping"
	"tms/vmm/space"
)

// ErrInvariant: the engine's own records contradict each other (Settings.Invariants). That is a defect of this library;
// please report it.
var ErrInvariant = errors.New("the engine contradicts itself")

// audit, deferred by an operation, adds what check finds to the operation's error.
func (e *Engine) audit(err *error) {
	if !e.checking.Load() {
		return
	}
	if found := e.inspect(); found != nil {
		*err = errors.Join(*err, found)
	}
}

// auditQuietly is audit for operations that return no error.
func (e *Engine) auditQuietly() {
	var err error
	if e.audit(&err); err != nil {
		e.process.Warn(err.Error())
	}
}

// inspection is one look at the records. It collects what the tags say, to compare it with what the space says.
type inspection struct {
	*Engine
	idle    bool // no pause or resume is in progress
	extents map[*extent]bool
	owned   map[space.Span[segment]]bool
	where   string // it is looking: a device, a tag
	found   error  // the first contradiction
}

// inspect looks for a contradiction. There must be none whenever e.mu is free, whatever other threads are in the middle
// of.
func (e *Engine) inspect() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := &inspection{Engine: e, extents: map[*extent]bool{}, owned: map[space.Span[segment]]bool{}}
	if i.idle = e.transition.TryLock(); i.idle {
		defer e.transition.Unlock()
	}
	for _, d := range e.devices {
		gated, exposed, shared := 0, 0, uint64(0)
		for name, t := range d.tags {
			i.where = fmt.Sprintf("device %d, tag %q: ", d.ordinal, name)
			i.ofTag(d, t)
			for _, s := range t.segments {
				if s.gated {
					gated++
				}
				if s.exposed {
					exposed++
				}
			}
		}
		for x := range i.extents {
			if x.device == d && x.shared {
				shared += x.Size
			}
		}
		i.where = fmt.Sprintf("device %d: ", d.ordinal)
		if shared != d.shared {
			i.note(fmt.Errorf("%d bytes in shared extents, noted are %d", shared, d.shared))
		}
		if gated != d.gated {
			i.note(fmt.Errorf("%d paused through the gate, noted are %d", gated, d.gated))
		}
		if exposed != d.exposed {
			i.note(fmt.Errorf("%d paused without the gate, noted are %d", exposed, d.exposed))
		}
	}
	i.where = ""
	i.ofGranules()
	i.ofPending()
	return i.found
}

func (i *inspection) note(contradiction error) {
	if contradiction != nil && i.found == nil {
		i.found = fmt.Errorf("%w: %s%w", ErrInvariant, i.where, contradiction)
	}
}

// must notes a contradiction about what begins at an address, unless it is right.
func (i *inspection) must(right bool, at uintptr, wrong string, arguments ...any) {
	if !right {
		i.note(fmt.Errorf("segment %#x: %w", at, fmt.Errorf(wrong, arguments...)))
	}
}

func (i *inspection) ofTag(d *device, t *tag) {
	if d.tags[t.name] != t || t.isEmpty() {
		i.note(errors.New("of another name, or of nothing"))
	}
	for n, s := range t.segments {
		i.ofSegment(d, s)
		i.must(s.tag == t && s.index == n && s.listed, s.address, "in the list of another tag, or not where it says")
		i.must(s.state != slack, s.address, "slack among the live")
		if s.userMapped != nil {
			i.ofUserMapped(s)
		} else {
			i.must(t.ranges.Holds(s.span), s.address, "in addresses of another tag")
			i.mustBeFound(s)
		}
		if s.slab != nil {
			i.must(s.slab.Live > 0, s.address, "no small allocation in it")
			i.must(s.span.Granules() == 1, s.address, "small allocations in %d granules", s.span.Granules())
			err := s.slab.Check()
			i.must(err == nil, s.address, "%w", err)
		}
	}
	i.must(t.slack.Check(), 0, "slack in lists that are not its own")
	for s := range t.slack.All() {
		i.ofSegment(d, s)
		i.must(s.tag == t && s.free.Lists(s.span.Room(), s.span.Granules()) && t.ranges.Holds(s.span), s.address,
			"in a list of slack that is not its own")
		i.must(s.state == slack && !s.listed && s.extent != nil && s.owner == nobody && s.slab == nil &&
			s.contents == nil, s.address, "slack in state %d, with extent %v, owner %d", s.state, s.extent != nil,
			s.owner)
		i.must(i.segmentAt(s.address) == nil, s.address, "slack that can be found")
	}
	for kind, of := range t.slabs {
		for s, there := range of.Owners() {
			if !there {
				i.note(errors.New("a slab is not where it is listed as having room"))
				continue
			}
			i.must(s.tag == t && s.slab != nil && kind == slabKind{s.policy, s.state == paused}, s.address,
				"wrongly listed as having room")
		}
	}
	// An allocation in progress has a span, but no listed segment yet.
	i.note(t.ranges.Check(func(s space.Span[segment]) bool { return i.owned[s] }))
}

// ofSegment checks what live ones and slack have in common.
func (i *inspection) ofSegment(d *device, s *segment) {
	i.must(s.device == d, s.address, "of another device")
	i.must(!i.idle || s.owner != aTransition, s.address, "in a pause or resume, and none goes on")
	if s.userMapped == nil { // else it has no span
		i.must(s.address == s.span.Address(), s.address, "not where its span is")
		i.must(!i.owned[s.span], s.address, "shares its span with another segment")
		i.owned[s.span] = true
	}
	step := mapping.None
	if x := s.extent; x != nil {
		if !i.extents[x] {
			i.extents[x] = true
			i.ofExtent(x, s)
		}
		if x.owner != nobody { // only the owner reads its step
			return
		}
		step = x.Step
	}
	amiss := s.state == active && step < mapping.Accessible && s.userMapped == nil ||
		s.state == paused && step == mapping.Accessible
	i.must(s.owner != nobody || !amiss, s.address, "in state %d, and its memory at step %d", s.state, step)
	i.must(!s.gated || s.state == paused, s.address, "in state %d, and noted as paused through the gate", s.state)
	i.must(!s.exposed || s.state == paused, s.address, "in state %d, and noted as paused without the gate", s.state)
}

// ofUserMapped checks that memory which a program mapped is known as such.
func (i *inspection) ofUserMapped(s *segment) {
	listed := i.userMapped.mapped.from(s.address) == s
	i.must(listed == s.userMapped.mapped, s.address, "mapped by the program, and not listed as that, or the reverse")
	i.must(s.userMapped.mapped || s.imported != nil || s.state == paused, s.address, "not mapped")
	i.must(i.userMapped.known[s.userMapped.handle] == s, s.address, "not known by its handle")
	i.must(s.imported == nil || i.sharing.imports[s.imported.key(s)] == s, s.address,
		"of another process, and not listed as that")
}

// mustBeFound checks that each granule leads to the segment.
func (i *inspection) mustBeFound(s *segment) {
	for n := range s.span.Granules() {
		if i.segmentAt(s.address+uintptr(uint64(n)*s.device.granularity)) != s {
			i.must(false, s.address, "granule %d of it does not lead to it", n)
		}
	}
}

func (i *inspection) ofExtent(x *extent, of *segment) {
	if x.imported != nil && x.userMapped == nil {
		// It is at the address that the program got, and within its reservation.
		begins, ends := uint64(x.Address-of.address), uint64(x.Address-of.address)+x.Size
		offset, size := x.imported.offset, x.imported.size
		right := slices.Index(x.segments, of) == 0 && begins <= offset && ends >= offset+size && ends <= of.length()
		i.must(x.owner != nobody || right, of.address, "its extent is from %d to %d, for %d bytes at %d", begins, ends,
			size, offset)
		return
	}
	if x.owner == aTransition && slices.ContainsFunc(x.segments, func(s *segment) bool { return s.extent != x }) {
		return // others have its place: a compaction is about to end it
	}
	live, size := 0, uint64(0)
	for _, s := range x.segments {
		i.must(s.extent == x, s.address, "in the list of another extent")
		i.must(s.address == x.Address+uintptr(size), s.address, "not beside the one before in its extent")
		i.must(s.tag == of.tag && s.device == x.device, s.address, "of another tag or device than its extent")
		size += s.length()
		if s.state != slack {
			live++
		}
	}
	i.must(live == x.live && live > 0, of.address, "its extent has %d segments live, noted are %d", live, x.live)
	i.must(size == x.Size, of.address, "its extent has %d bytes, its segments have %d", x.Size, size)
	i.must(x.owner != nobody || x.Step != mapping.None, of.address, "its extent has no memory")
}

// ofGranules goes the other way: from granules to segments.
func (i *inspection) ofGranules() {
	for address, s := range i.space.Owners() {
		if uint64(address-s.address) >= s.length() || s.index >= len(s.tag.segments) || s.tag.segments[s.index] != s {
			i.must(false, s.address, "not there, where the granule at %#x leads", address)
		}
	}
}

// ofPending checks the frees that their callers believe done.
func (i *inspection) ofPending() {
	seen := map[allocation]bool{}
	for f := range i.pending.all() {
		a := f.allocation
		if f.stage == due { // it may be in progress
			continue
		}
		gone := !a.small && a.segment.owner != aFree
		if a.small {
			gone = a.segment.slab != nil && !a.segment.slab.Freeing(a.offset)
		}
		i.must(!gone && !seen[a], a.segment.address, "a free of it that waits is not one, or is there twice")
		seen[a] = true
	}
}
