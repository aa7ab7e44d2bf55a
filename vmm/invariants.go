package vmm

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/space"
)

// ErrInvariant: the engine's own records contradict each other (CheckInvariants). That is a defect of this library;
// please report it.
var ErrInvariant = errors.New("the engine contradicts itself")

// CheckInvariants turns on, or off, a check of the engine's records at the end of every operation. An operation
// returns what the check finds as ErrInvariant, or warns of it where it returns no error. A check takes time in
// proportion to the records, so it is for finding defects.
func (e *Engine) CheckInvariants(on bool) { e.checking.Store(on) }

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
		e.warn(err.Error())
	}
}

func (e *Engine) inspect() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvariant, err)
	}
	return nil
}

// inspection collects what the tags say, to compare it with what the space says.
type inspection struct {
	idle    bool // no pause or resume is in progress
	extents map[*extent]bool
	owned   map[space.Span[segment]]bool
}

// check looks for a contradiction. There must be none whenever e.mu is free, whatever other threads are in the middle
// of. The caller holds e.mu.
func (e *Engine) check() error {
	i := &inspection{extents: map[*extent]bool{}, owned: map[space.Span[segment]]bool{}}
	if i.idle = e.transition.TryLock(); i.idle {
		defer e.transition.Unlock()
	}
	for _, d := range e.devices {
		gated := d.gated
		for _, t := range d.tags {
			for _, s := range t.segments {
				if s.gated {
					gated--
				}
			}
		}
		if gated != 0 {
			return fmt.Errorf("device %d: %d paused through the gate, %d fewer are noted so", d.ordinal, d.gated, gated)
		}
		for name, t := range d.tags {
			if err := e.checkTag(i, d, t); err != nil {
				return fmt.Errorf("device %d, tag %q: %w", d.ordinal, name, err)
			}
		}
	}
	for x := range i.extents {
		if err := x.check(); err != nil {
			return fmt.Errorf("extent at %#x: %w", x.address, err)
		}
	}
	if err := e.checkOwners(); err != nil {
		return err
	}
	return e.checkWaiting()
}

func (e *Engine) checkTag(i *inspection, d *device, t *tag) error {
	if d.tags[t.name] != t || len(t.segments) == 0 && t.ranges.Empty() {
		return errors.New("of another name, or of nothing")
	}
	for n, s := range t.segments {
		err := i.segment(d, s)
		switch {
		case err != nil:
		case s.tag != t || s.index != n:
			err = errors.New("in the list of another tag, or not where it says")
		case s.state == slack:
			err = errors.New("slack among the live")
		case s.isUserMapped():
			err = e.checkUserMapped(s)
		case !t.ranges.Holds(s.span):
			err = errors.New("in addresses of another tag")
		default:
			err = e.checkFound(s)
		}
		if err == nil && s.slab != nil {
			err = s.checkSlab()
		}
		if err != nil {
			return fmt.Errorf("segment %#x: %w", s.address, err)
		}
	}
	for granules, list := range t.slack {
		for n, s := range list {
			err := i.segment(d, s)
			switch {
			case err != nil:
			case s.tag != t || s.index != n || s.span.Granules() != granules || !t.ranges.Holds(s.span):
				err = errors.New("in a list of slack that is not its own")
			case s.state != slack || s.extent == nil || s.owner != nobody || s.slab != nil || s.contents != nil:
				err = fmt.Errorf("slack in state %d, with extent %v, owner %d", s.state, s.extent != nil, s.owner)
			case e.segmentAt(s.address) != nil:
				err = errors.New("slack that can be found")
			}
			if err != nil {
				return fmt.Errorf("segment %#x: %w", s.address, err)
			}
		}
	}
	for p, list := range t.slabs {
		listed := map[*segment]bool{}
		for _, s := range list {
			if listed[s] || s.tag != t || s.slab == nil || !s.listed || s.policy != p {
				return fmt.Errorf("segment %#x: wrongly listed as having room", s.address)
			}
			listed[s] = true
		}
	}
	// An allocation in progress has a span, but no listed segment yet.
	return t.ranges.Check(func(s space.Span[segment]) bool { return i.owned[s] })
}

// segment checks what live ones and slack have in common.
func (i *inspection) segment(d *device, s *segment) error {
	switch {
	case s.device != d:
		return errors.New("of another device")
	case i.idle && s.owner == aTransition:
		return errors.New("in a pause or resume, and none goes on")
	case s.isUserMapped(): // it has no span
	case s.address != s.span.Address():
		return errors.New("not where its span is")
	case i.owned[s.span]:
		return errors.New("shares its span with another segment")
	default:
		i.owned[s.span] = true
	}
	step := none
	if x := s.extent; x != nil {
		i.extents[x] = true
		if x.owner != nobody { // its step is not ours to read
			return nil
		}
		step = x.step
	}
	amiss := s.state == active && step < accessible && !s.isUserMapped() || s.state == paused && step == accessible
	if s.owner == nobody && amiss {
		return fmt.Errorf("in state %d, and its memory at step %d", s.state, step)
	}
	if s.gated && s.state != paused {
		return fmt.Errorf("in state %d, and noted as paused through the gate", s.state)
	}
	return nil
}

// checkUserMapped checks that memory which a program mapped is known as such.
func (e *Engine) checkUserMapped(s *segment) error {
	at, found := slices.BinarySearchFunc(e.userMapped.mapped, s.address, compareAddress)
	listed := found && e.userMapped.mapped[at] == s
	switch {
	case listed != s.userMapped.mapped:
		return errors.New("mapped by the program, and not listed as that, or the reverse")
	case !s.userMapped.mapped && !s.isImported() && s.state != paused:
		return errors.New("not mapped")
	case e.userMapped.known[s.userMapped.handle] != s:
		return errors.New("not known by its handle")
	case s.isImported() && e.sharing.imports[s.imported.key(s)] != s:
		return errors.New("of another process, and not listed as that")
	}
	return nil
}

// checkFound checks that each granule leads to the segment.
func (e *Engine) checkFound(s *segment) error {
	for n := range s.span.Granules() {
		if e.segmentAt(s.address+uintptr(uint64(n)*s.device.granularity)) != s {
			return fmt.Errorf("granule %d of it does not lead to it", n)
		}
	}
	return nil
}

func (s *segment) checkSlab() error {
	switch {
	case s.slab.Live() == 0:
		return errors.New("no small allocation in it")
	case s.span.Granules() != 1:
		return fmt.Errorf("small allocations in %d granules", s.span.Granules())
	}
	return s.slab.Check()
}

func (x *extent) check() error {
	if x.isImported() && !x.isUserMapped() {
		return x.checkImported(x.imported)
	}
	live, size := 0, uint64(0)
	for n, s := range x.segments {
		switch {
		case s.extent != x:
			return fmt.Errorf("segment %#x is not in it", s.address)
		case s.address != x.address+uintptr(size):
			return fmt.Errorf("segment %#x is not beside the one before", s.address)
		case s.tag != x.segments[0].tag || s.device != x.device:
			return fmt.Errorf("segment %d is of another tag or device", n)
		}
		size += s.length()
		if s.state != slack {
			live++
		}
	}
	switch {
	case live != x.live || live == 0:
		return fmt.Errorf("%d segments live, noted are %d", live, x.live)
	case size != x.size:
		return fmt.Errorf("%d bytes of segments, it has %d", size, x.size)
	case x.owner == nobody && x.step == none:
		return errors.New("no memory")
	}
	return nil
}

// checkImported checks that the memory is at the address that the program got, and within its reservation.
func (x *extent) checkImported(i *imported) error {
	s := x.segments[0]
	begins, ends := uint64(x.address-s.address), uint64(x.address-s.address)+x.size
	if x.owner == nobody && (s.extent != x || begins > i.offset || ends < i.offset+i.size || ends > s.length()) {
		return fmt.Errorf("from %d to %d of %#x, for %d bytes at %d", begins, ends, s.address, i.size, i.offset)
	}
	return nil
}

// checkOwners goes the other way: from granules to segments.
func (e *Engine) checkOwners() error {
	for address, s := range e.space.Owners() {
		if uint64(address-s.address) >= s.length() || !s.inTag() {
			return fmt.Errorf("the granule at %#x leads to segment %#x, which is not there", address, s.address)
		}
	}
	return nil
}

// checkWaiting checks the frees that their callers believe done.
func (e *Engine) checkWaiting() error {
	seen := map[allocation]bool{}
	for _, f := range e.pending {
		a := f.allocation
		if f.stage == due || f.stage == made { // it may be in progress
			continue
		}
		gone := !a.small && a.segment.owner != aFree
		if a.small {
			gone = a.segment.slab != nil && !a.segment.slab.Freeing(a.offset)
		}
		if gone || seen[a] {
			return fmt.Errorf("a free of segment %#x that waits is not one, or is there twice", a.segment.address)
		}
		seen[a] = true
	}
	return nil
}
