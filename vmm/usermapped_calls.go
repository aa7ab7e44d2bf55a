package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
	"tms/vmm/quota"
)

// ErrNotOurs: the call concerns no memory of a region, so it goes to the driver. A program's calls for virtual memory
// come to the engine first, because only the engine knows what is paused.
var ErrNotOurs = errors.New("no memory of a region")

// ErrMemoryPaused means that a call needs memory that is paused.
var ErrMemoryPaused = errors.New("the memory is paused")

// Create is cuMemCreate in a region: memory as prop says, under a handle of the engine's. r.Size is in bytes.
// Errors: ErrMargin, ErrLimit, *cuda.Error. (cuMemCreate)
func (m UserMapped) Create(r Request, prop cuda.AllocationProp) (cuda.Handle, error) {
	e := m.engine
	s := &segment{size: r.Size}
	s.userMapped = &userMapped{size: r.Size, prop: prop, references: 1}
	if err := e.obtain(&r, "creating", func(d *device, _ bool) error {
		s.device, s.policy = d, r.policy()
		s.extent = newExtent(s)
		request, err := d.quota.Reserve(r.Size, r.Limit)
		if err != nil {
			return err
		}
		need := quota.Need{Size: r.Size, Margin: r.Margin, Reserve: r.Reserve, Capturing: r.Capturing}
		err = e.unlocked(func() error { return d.quota.WithinMargin(need, s.extent.Create) })
		if d.quota.Answered(request, r.Size); err == nil {
			d.quota.Gain(r.Size)
		}
		return err
	}); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.tag = s.device.newTag(r.Tag)
	e.names.Note(r.Tag)
	if s.incremental || s.sparse {
		e.hasher.LoadAside(s.device.context)
	}
	e.assignHandle(s)
	return s.userMapped.handle, nil
}

// Release is cuMemRelease. Memory that is mapped stays until it is unmapped.
// Errors: ErrNotOurs, *cuda.Error. (cuMemRelease)
func (m UserMapped) Release(handle cuda.Handle) error {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.byHandle(handle)
	if err != nil {
		return err
	}
	s.userMapped.references--
	if err = e.releaseUnused(s, func() error { return s.extent.Release() }); err != nil {
		s.userMapped.references++
	}
	return err
}

// Map is cuMemMap of size bytes. Paused memory stays paused and comes back at the new address. Map refuses a
// driver's own handle where paused memory is, and leaves it to the driver elsewhere. Errors: ErrNotOurs,
// cuda.InvalidValue, cuda.NotSupported, *cuda.Error. (cuMemMap)
func (m UserMapped) Map(address uintptr, size, offset uint64, handle cuda.Handle, flags uint64) error {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.byHandle(handle)
	switch {
	case e.overlapping(address, size) != nil:
		return fmt.Errorf("memory of a region is mapped at %#x%.0w", address, cuda.InvalidValue)
	case err != nil:
		return err
	case offset != 0 || flags != 0:
		return fmt.Errorf("a handle made in a region is mapped without an offset and without flags%.0w",
			cuda.NotSupported)
	case s.lost() != nil:
		return s.lost()
	case s.userMapped.mapped:
		return e.mapAgain(s, address, size)
	case s.state == paused && e.devices[s.device.ordinal] != s.device:
		return fmt.Errorf("the memory went with a reset of device %d%.0w", s.device.ordinal, cuda.InvalidValue)
	case s.state == paused && size != s.size:
		return fmt.Errorf("%d bytes of %d that are paused cannot be mapped alone%.0w", size, s.size, cuda.NotSupported)
	}
	x := s.extent
	if s.state == active {
		if err := e.engage([]*extent{x}, func() error {
			return s.device.driver.MemMap(address, size, x.Handle)
		}); err != nil {
			return err
		}
		x.Step = mapping.Mapped
	}
	s.address, s.size, s.userMapped.mapped = address, size, true
	if x != nil {
		x.Address, x.Size = address, size
	}
	e.userMapped.mapped.insert(s)
	if !s.listed { // what is paused, or of another process, is
		e.relocate(s)
		s.device.tag(s.tag.name).add(s)
	}
	return nil
}

// mapAgain maps memory at one more address, as for a ring buffer or a page that many tensors share. Pauses leave the
// memory alone for as long as it has several addresses. The caller holds e.mu, which is released for the driver call.
func (e *Engine) mapAgain(s *segment, address uintptr, size uint64) error {
	if s.state == paused || s.imported != nil {
		return fmt.Errorf("paused memory, or memory of another process, cannot be mapped twice%.0w", cuda.NotSupported)
	}
	x := s.extent
	err := e.engage([]*extent{x}, func() error { return s.device.driver.MemMap(address, size, x.Handle) })
	if err == nil {
		at, _ := e.mappedAgain(address, size)
		e.userMapped.again = slices.Insert(e.userMapped.again, at, again{address, s})
		s.userMapped.pinned++
	}
	return err
}

// mappedAgain returns where in userMapped.again the further mappings of a range are. The caller holds e.mu.
func (e *Engine) mappedAgain(address uintptr, size uint64) (from, to int) {
	at := func(a again, address uintptr) int { return cmp.Compare(a.address, address) }
	from, _ = slices.BinarySearchFunc(e.userMapped.again, address, at)
	to, _ = slices.BinarySearchFunc(e.userMapped.again, address+uintptr(size), at)
	return from, to
}

// Unmap is cuMemUnmap of whole mappings. For paused ones it drops the record. A release that the driver refuses is
// made later. Errors: ErrNotOurs, cuda.InvalidValue, *cuda.Error. (cuMemUnmap, cuMemRelease)
func (m UserMapped) Unmap(address uintptr, size uint64) error {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	// A release unlocks e.mu, so all mappings are noted before it: no pause may find one that the driver has unmapped.
	var unmapped []*segment
	from, to := e.mappedAgain(address, size)
	err := e.eachPart(address, size, (*cuda.Driver).MemUnmap, func(part []*segment) {
		e.unmapped(part)
		unmapped = append(unmapped, part...)
	})
	if to > from && errors.Is(err, ErrNotOurs) {
		err = e.unlocked(func() error { return e.driver.MemUnmap(address, size) })
	}
	if from, to = e.mappedAgain(address, size); err == nil && to > from {
		for _, a := range e.userMapped.again[from:to] {
			a.of.userMapped.pinned--
		}
		e.userMapped.again = slices.Delete(e.userMapped.again, from, to)
	}
	for _, s := range unmapped {
		_ = e.releaseUnused(s, func() error { s.extent.Drop(); return nil })
	}
	return err
}

// SetAccess is cuMemSetAccess, of whole mappings; paused ones get the access when they come back.
// Errors: ErrNotOurs, cuda.InvalidValue, *cuda.Error. (cuMemSetAccess)
func (m UserMapped) SetAccess(address uintptr, size uint64, descs []cuda.AccessDesc) error {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(descs) == 0 && e.overlapping(address, size) != nil {
		return fmt.Errorf("no access is asked for%.0w", cuda.InvalidValue)
	}
	if s := e.overlapping(address, size); s != nil && s.lost() != nil {
		return s.lost()
	}
	set := func(d *cuda.Driver, address uintptr, size uint64) error {
		return d.MemSetAccessOf(address, size, descs)
	}
	return e.eachPart(address, size, set, func(part []*segment) {
		for _, s := range part {
			s.userMapped.access.Set(descs)
			if x := s.extent; x != nil && x.Step >= mapping.Mapped {
				if x.Step = mapping.Mapped; s.userMapped.access.Writable(s.device.ordinal) {
					x.Step = mapping.Accessible
				}
			}
		}
	})
}

// AddressFree refuses to free addresses where memory of a region is mapped, even if it is paused. Errors:
// cuda.InvalidValue, else ErrNotOurs.
func (m UserMapped) AddressFree(address uintptr, size uint64) error {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.overlapping(address, size); s != nil {
		return fmt.Errorf("memory of a region is mapped at %#x%.0w", s.address, cuda.InvalidValue)
	}
	return ErrNotOurs
}

// Retain is cuMemRetainAllocationHandle: our handle of the memory mapped around an address, once more.
// Errors: ErrNotOurs.
func (m UserMapped) Retain(address uintptr) (cuda.Handle, error) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.overlapping(address, 1)
	if s == nil {
		return 0, ErrNotOurs
	}
	s.userMapped.references++
	return s.userMapped.handle, nil
}

// Use calls use with the driver's handle behind one of the engine's, and holds off pauses during the call. With
// lend, use gives the memory itself away. Later pauses then leave it as it is, because its new users could not get
// other memory. Errors: ErrNotOurs, cuda.NotSupported while it is paused, that of use.
func (m UserMapped) Use(handle cuda.Handle, lend bool, use func(cuda.Handle) error) error {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.usable(handle, lend)
	if err != nil {
		return err
	}
	err = e.engage([]*extent{s.extent}, func() error { return use(s.extent.Handle) })
	if err == nil && lend {
		s.userMapped.pinned++
	}
	return err
}

// Pin is Use for calls that may wait for other processes: it returns the driver's handle behind one of the
// engine's, and pauses leave the memory as it is until Unlend. Errors: ErrNotOurs, cuda.NotSupported while it is
// paused.
func (m UserMapped) Pin(handle cuda.Handle) (cuda.Handle, error) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.usable(handle, true)
	if err != nil {
		return 0, err
	}
	s.userMapped.pinned++
	return s.extent.Handle, nil
}

// Unpin takes a Lend back.
func (m UserMapped) Unpin(handle cuda.Handle) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.userMapped.known[handle]; s != nil {
		s.userMapped.pinned--
	}
}

// usable finds settled memory that is not paused, for a call with the driver's handle. The caller holds e.mu.
func (e *Engine) usable(handle cuda.Handle, lend bool) (*segment, error) {
	s, err := e.byHandle(handle)
	switch {
	case err != nil:
		return nil, err
	case lend && s.imported != nil:
		return nil, fmt.Errorf("the memory belongs to %v, which alone can export it like this%.0w",
			s.imported.share, cuda.NotSupported)
	case s.lost() != nil:
		return nil, s.lost()
	case s.state == paused:
		return nil, fmt.Errorf("%w; resume tag %q first%.0w", ErrMemoryPaused, s.tag.name, cuda.NotSupported)
	}
	return s, nil
}
