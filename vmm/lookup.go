package vmm

import (
	"fmt"

	"tms/vmm/cuda"
	"tms/vmm/store"
)

// BackupPointer returns the address of the host copy of size bytes of device memory, 0 if there is none now. From
// reserved host memory it first moves the copies of the tag to the process's own, or refuses if asleep: calls of the
// driver would wait. Errors: ErrInvalidAddress when the range does not lie in one live segment; of Move; *cuda.Refusal.
func (e *Engine) BackupPointer(address uintptr, size uint64, asleep bool) (pointer uintptr, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.around(address)
	for a.segment != nil && a.segment.owner == aTransition {
		e.settled.Wait()
		a = e.around(address)
	}
	s := a.segment
	if s == nil {
		return 0, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
	}
	if offset := uint64(address - a.address()); offset > a.size() || size > a.size()-offset {
		return 0, fmt.Errorf("%w: %#x + %d bytes reaches past the end of its segment", ErrInvalidAddress, address, size)
	}
	if s.state == paused && s.current && store.IsReserved(s.contents) {
		if asleep {
			return 0, cuda.Refuse(cuda.NotSupported, "%#x: the copy is in reserved host memory, which has no address "+
				"while everything of this process is paused; resume it first", address)
		}
		err = e.unlocked(func() error {
			moved, err := e.own(s.tag.name)
			if moved > 0 {
				pointer, err = e.BackupPointer(address, size, false)
			}
			return err
		})
		return pointer, err
	}
	if s.contents == nil || !s.current || s.contents.Host() == 0 {
		return 0, nil
	}
	return s.contents.Host() + address - s.address, nil
}

// around returns the live allocation that an address lies in or just behind; without a segment there is none. The
// caller holds e.mu.
func (e *Engine) around(address uintptr) allocation {
	s := e.segmentAt(address)
	switch {
	case s == nil || s.owner == aFree:
		return allocation{}
	case s.isImported():
		at := uintptr(s.imported.offset)
		if uint64(address-s.address-at) >= s.imported.size {
			return allocation{} // a neighbour that came with it
		}
		return allocation{segment: s, offset: at}
	case s.slab == nil:
		return allocation{segment: s}
	}
	offset, ok := s.slab.Find(address - s.address)
	if !ok || s.slab.Freeing(offset) {
		return allocation{}
	}
	return allocation{segment: s, small: true, offset: offset}
}

// RangeOf returns where the live allocation around an address begins, and its size in bytes, or 0 if there is none.
func (r Records) RangeOf(address uintptr) (base uintptr, size uint64) {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.around(address)
	if a.segment == nil {
		return 0, 0
	}
	return a.address(), a.size()
}

// Holds reports whether a segment of the tags (nil: of any) that is not paused reaches into size bytes at an address.
func (r Records) Holds(tags []string, address uintptr, size uint64) bool {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	holds := false
	e.visit(tags, func(_ *device, s *segment) int {
		holds = holds || s.state == active && s.address < address+uintptr(size) && address < s.address+uintptr(s.size)
		return 1
	})
	return holds
}

// OneReservation reports whether two addresses of segments lie in one reservation (cuMemAddressReserve): mappings
// side by side in it are one range to a driver copy.
func (e *Engine) OneReservation(low, high uintptr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.space.OneArena(low, high)
}

// segmentAt returns the segment of a granule. The caller holds e.mu.
func (e *Engine) segmentAt(address uintptr) *segment {
	if s, inside := e.space.Find(address); inside {
		return s
	}
	return e.overlapping(address, 1)
}

// NoteExport notes that the program has exported the memory behind a driver's handle, or at addresses. The number that
// cuMemCreate gives a handle is the one that cuMemRetainAllocationHandle returns.
func (h Shared) NoteExport(handle cuda.Handle, address uintptr, size uint64) {
	e := h.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	note := func(s *segment) {
		if x := s.extent; x != nil && x.step >= created && !s.isImported() &&
			(x.handle == handle || x.address < address+uintptr(size) && address < x.address+uintptr(x.size)) {
			x.exported = true
		}
	}
	changes := func(s *segment) bool { return s.owner == aTransition || s.extent != nil && s.extent.owner != nobody }
	changing := map[*segment]bool{} // at this moment: its handle may change, too
	e.visit(nil, func(_ *device, s *segment) int {
		if changes(s) {
			changing[s] = true
		} else {
			note(s)
		}
		return 1
	})
	var p pace
	for len(changing) > 0 { // that ends without the program
		e.settled.Wait()
		for s := range changing {
			p.yield(e, 1)
			if !changes(s) {
				delete(changing, s)
				note(s)
			}
		}
	}
}

// Exported returns the address of a segment whose memory the program has exported, or 0 if there is none.
func (h Shared) Exported() uintptr {
	e := h.engine
	for _, s := range e.choose(nil, func(s *segment) bool { return s.extent != nil && s.extent.exported }) {
		return s.address
	}
	return 0
}
