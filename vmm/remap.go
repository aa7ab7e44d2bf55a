package vmm

import (
	"fmt"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
)

// A set has versions: other memory of the same size. A remap puts it in the place of memory that is attached: the
// addresses stay, and so do CUDA graphs that hold them. No byte is copied.

// Exchange says which memory of the keeper is to be at the address of an Attach.
type Exchange struct {
	Address uintptr
	ID      uint64
}

// exchanging is an Exchange in progress.
type exchanging struct {
	segment *segment
	from    *imported // whose memory it has when the remap begins
	to      *imported
	// spare is the handle of the memory that comes, and once it is mapped, of the memory that goes.
	spare borrowed
	begun bool // its extent was unmapped
	there bool // its extent has the handle of the memory that comes
}

// Remapping says how a Remap goes with what else its process does.
type Remapping struct {
	Capturing bool
	// Idle waits for the work that the devices have. nil: as long as that takes.
	Idle func() error
	// Mapping calls the part that has handles of the memory that comes, and maps it. nil: at once.
	Mapping func(func() error) error
}

// Remap makes all of the exchanges, or none. Memory that is active is mapped when Remap returns, and memory that is
// paused stays so: its resume maps what has come. Each address must have been attached once, the memory there must not
// have been exported, and the memory that comes must be attached nowhere else in this process.
//
// Remap first waits for the work that the devices have by now, with nothing claimed or locked, and the program must give
// them no other work on this memory until Remap returns. It then asks for the memory that comes, and one transition
// unmaps and maps each extent. An error undoes that. Where the driver refuses to map what was there, that memory is
// paused, and a resume maps it. So all that is active when Remap returns is what was there before, or all of it has come.
//
// Errors: those of Idle and Mapping, ErrInvalidAddress, ErrCapturing, ErrShareGone, *cuda.Error.
// (cuMemImportFromShareableHandle, cuMemUnmap, cuMemMap, cuMemSetAccess, cuMemRelease)
func (h Shared) Remap(exchanges []Exchange, how Remapping) (err error) {
	e := h.engine
	defer e.audit(&err)
	if how.Capturing {
		return fmt.Errorf("remap: %w", ErrCapturing)
	}
	all, done, err := e.beginExchanges(exchanges)
	if err != nil {
		return fmt.Errorf("remap: %w", err)
	}
	defer done()
	if len(all) == 0 {
		return nil
	}
	idle, mapping := how.Idle, how.Mapping
	if idle == nil {
		var ordinals []int
		for _, m := range all {
			ordinals = append(ordinals, m.segment.device.ordinal)
		}
		idle = func() error { return e.contexts.Finish(ordinals...) }
	}
	if mapping == nil {
		mapping = func(do func() error) error { return do() }
	}
	if err = idle(); err == nil {
		err = mapping(func() error { return e.fetchAndExchange(all) })
	}
	if err != nil {
		return fmt.Errorf("remap: %w", err)
	}
	return nil
}

// fetchAndExchange asks for the memory that comes, makes the exchanges, and gives back the memory that went, or after an
// error what has come.
func (e *Engine) fetchAndExchange(all []*exchanging) (err error) {
	defer func() {
		for _, m := range all {
			of := m.to.share
			if m.there {
				of = m.from.share
			}
			if m.spare.handle != 0 {
				(&imported{engine: e, share: of}).end(m.segment.device, m.spare)
			}
		}
	}()
	var options Options
	for _, m := range all {
		if m.spare, err = m.to.fetch(m.segment.length()); err != nil {
			return err
		}
		options.Tags = append(options.Tags, m.segment.tag.name)
	}
	claimed := 0
	wanted := func(s *segment) bool {
		return (s.is(active) || s.is(paused)) && slices.ContainsFunc(all, func(m *exchanging) bool { return m.segment == s })
	}
	err = e.transact("remap", &operation{Options: options}, wanted, func(batches []*batch) error {
		for _, b := range batches {
			claimed += len(b.segments)
		}
		if claimed < len(all) {
			return nil
		}
		return e.exchange(all)
	}, func(*tag) {})
	if err == nil && claimed < len(all) {
		err = fmt.Errorf("it was closed during the call: %w", ErrInvalidAddress)
	}
	return err
}

// beginExchanges finds the memory that is to go, and keeps other calls from attaching it, or what comes, until done is
// called.
func (e *Engine) beginExchanges(exchanges []Exchange) (all []*exchanging, done func(), err error) {
	var keys []importKey
	e.mu.Lock()
	defer e.mu.Unlock()
	for waits := true; waits; {
		waits, all, keys = false, nil, nil
		for _, asked := range exchanges {
			s := e.segmentAt(asked.Address)
			if s == nil || s.imported == nil || s.imported.share.PID != Keeper || s.owner == aFree ||
				s.imported.opened[asked.Address] == 0 {
				return nil, nil, fmt.Errorf("%#x was not attached: %w", asked.Address, ErrInvalidAddress)
			}
			from := s.imported
			to := &imported{engine: e, share: Share{PID: Keeper, ID: asked.ID}, offset: from.offset, size: from.size,
				opened: from.opened, readOnly: true}
			old, fresh := from.key(s), to.key(s)
			waits = waits || s.owner == aTransition || e.sharing.opening[old] || e.sharing.opening[fresh]
			if old == fresh { // it is there
				continue
			}
			if from.opened[asked.Address] != 1 || len(from.opened) != 1 {
				return nil, nil, cuda.Refuse(cuda.InvalidValue, "the memory at %#x is attached more than once in this "+
					"process; close the others", asked.Address)
			}
			if from.exported {
				return nil, nil, cuda.Refuse(cuda.InvalidValue, "the memory at %#x was exported, and the export would keep "+
					"what is there now: close the set, and attach it again", asked.Address)
			}
			if e.sharing.imports[fresh] != nil {
				return nil, nil, cuda.Refuse(cuda.InvalidValue, "this process has the memory that is to come attached "+
					"elsewhere; close that first")
			}
			all = append(all, &exchanging{segment: s, from: from, to: to})
			keys = append(keys, old, fresh)
		}
		if waits {
			e.settled.Wait()
		}
	}
	for _, key := range keys {
		e.sharing.opening[key] = true
	}
	return all, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, key := range keys {
			delete(e.sharing.opening, key)
		}
		e.settled.Broadcast()
	}, nil
}

// exchange is the work of the transition, which owns the extents.
func (e *Engine) exchange(all []*exchanging) (err error) {
	for _, m := range all {
		if err = m.swap(); err != nil {
			break
		}
	}
	if err != nil {
		stuck := false
		for _, m := range all {
			stuck = !m.undo() || stuck
		}
		if stuck {
			err = fmt.Errorf("%w; the driver did not map all of it again: resume it, and nothing is lost", err)
		}
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range all {
		s := m.segment
		delete(e.sharing.imports, m.from.key(s))
		e.sharing.imports[m.to.key(s)] = s
		if s.imported = m.to; s.extent != nil && m.there {
			m.to.number, m.spare.number = m.spare.number, m.from.number
			s.extent.imported = m.to
		}
	}
	return nil
}

// swap puts the memory that comes in the place of the other. Memory that is paused is let go, if an error has left some.
func (m *exchanging) swap() error {
	x := m.segment.extent
	if m.segment.state == paused {
		if x == nil {
			return nil
		}
		return x.Unmake()
	}
	if err := x.Detach(); err != nil {
		return err
	}
	m.begun, m.there = true, true
	x.Handle, m.spare.handle = m.spare.handle, x.Handle
	return x.Attach()
}

// undo maps what was there before, and reports whether it could. Otherwise the memory is paused, and its extent knows
// the handle that it is to have.
func (m *exchanging) undo() bool {
	if !m.begun {
		return true
	}
	x := m.segment.extent
	m.there = false
	if x.Detach() != nil {
		x.Instead, m.spare.handle = m.spare.handle, 0
	} else {
		x.Handle, m.spare.handle = m.spare.handle, x.Handle
	}
	if x.Instead == 0 && x.Attach() == nil {
		return true
	}
	x.Step = min(x.Step, mapping.Mapped) // it is paused
	m.segment.outcome.state = paused
	return false
}
