package vmm

import (
	"fmt"
	"maps"
	"slices"
	"sort"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
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
			moved, err := e.fetchReserved(s.tag.name)
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
	case s.imported != nil:
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
		if x := s.extent; x != nil && x.Step >= mapping.Created &&
			(x.Handle == handle || x.Address < address+uintptr(size) && address < x.Address+uintptr(x.Size)) {
			if s.imported != nil {
				s.imported.exported = true
			} else {
				x.Exported = true
			}
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
	for _, s := range e.choose(nil, func(s *segment) bool { return s.extent != nil && s.extent.Exported }) {
		return s.address
	}
	return 0
}

// Allocation is memory that the program has: a segment, or one of the small allocations that share a segment.
type Allocation struct {
	Address uintptr
	Size    uint64 // bytes
	Device  int
	Tag     string
	Mapped  bool // by the program itself
}

// Allocations calls f with each allocation. It calls f without a lock, so some may have been freed by then.
func (r Records) Allocations(f func(Allocation)) {
	e := r.engine
	all := [][]Allocation{nil}
	add := func(a Allocation) {
		last := &all[len(all)-1]
		if *last = append(*last, a); len(*last) == 1024 { // one list for all would be copied as it grows
			all = append(all, nil)
		}
	}
	seen := map[*segment]bool{}
	e.mu.Lock()
	e.visit(nil, func(d *device, s *segment) int {
		if seen[s] || s.owner == aFree || s.imported != nil || s.address == 0 { // 0: it was unmapped while paused
			return 1
		}
		if seen[s] = true; s.slab == nil {
			add(Allocation{s.address, s.size, d.ordinal, s.tag.name, s.userMapped != nil})
			return 1
		}
		s.slab.Each(func(offset uintptr, size uint64) {
			add(Allocation{s.address + offset, size, d.ordinal, s.tag.name, false})
		})
		return s.slab.Live
	})
	e.mu.Unlock()
	for _, list := range all {
		for _, a := range list {
			f(a)
		}
	}
}

// At returns the memory that the program itself has mapped at an address, and reports whether the engine knows
// it.
func (m UserMapped) At(address uintptr) (Allocation, bool) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.overlapping(address, 1)
	if s == nil || s.imported != nil {
		return Allocation{}, false
	}
	return Allocation{s.address, s.size, s.device.ordinal, s.tag.name, true}, true
}

// Exposed returns the tag of the memory at an address, if that is exposed. Memory is exposed while a pause that is not
// gated keeps it: nothing holds the program from a call that names the addresses, where nothing is mapped.
func (e *Engine) Exposed(address uintptr) (name string, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.segmentAt(address); s != nil && s.exposed {
		return s.tag.name, true
	}
	return "", false
}

// Transitions returns how many pauses, resumes and moves there have been; see Options.Since.
func (r Records) Transitions() uint64 {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// PausedBy returns the number of the pause that last took memory of a tag, or 0 if no memory of the tag is paused.
// Later pauses have higher numbers. A sub-allocator that keeps freed memory asks, because memory that it had before
// that pause is paused.
func (r Records) PausedBy(name string) (last uint64) {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		if t := d.tags[name]; t != nil {
			last = max(last, t.pausedBy)
		}
	}
	return last
}

// PausedTag returns the first tag by its name of which memory is paused, and reports whether there is one.
func (r Records) PausedTag() (name string, ok bool) {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		for _, t := range d.tags {
			if p.yield(e, 1); t.pausedBy != 0 && (!ok || t.name < name) {
				name, ok = t.name, true
			}
		}
	}
	return name, ok
}

// A gated pause stops a program that does not cooperate: libtms_reach.so holds its threads at their next CUDA call, the
// engine waits for the work that they have submitted, and the threads go on when all memory is back. The engine knows
// neither the threads nor what holds them.

// Gated reports whether a gated pause still keeps anything paused.
func (r Records) Gated() bool {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gating
}

// GatedTags lists the tags of which gated pauses keep something paused. It is never nil.
func (r Records) GatedTags() []string {
	e := r.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	names := map[string]bool{}
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		for name, t := range d.tags {
			if p.yield(e, 1); t.gated > 0 {
				names[name] = true
			}
		}
	}
	return slices.AppendSeq([]string{}, maps.Keys(names))
}

// byAddress has segments in the order of their addresses. It has them in runs, so that an insertion or a removal moves
// a few, however many there are.
type byAddress struct{ runs [][]*segment }

// longestRun is after how many segments a run is divided.
const longestRun = 256

// find returns the run, and the place there, of the first segment that begins at an address or behind it.
func (l *byAddress) find(address uintptr) (run, at int) {
	run = sort.Search(len(l.runs), func(i int) bool { return l.runs[i][len(l.runs[i])-1].address >= address })
	if run < len(l.runs) {
		at = sort.Search(len(l.runs[run]), func(i int) bool { return l.runs[run][i].address >= address })
	}
	return run, at
}

// from returns the first segment that begins at an address or behind it, or nil.
func (l *byAddress) from(address uintptr) *segment {
	run, at := l.find(address)
	if run == len(l.runs) {
		return nil
	}
	return l.runs[run][at]
}

// before returns the last segment that begins before an address, or nil.
func (l *byAddress) before(address uintptr) *segment {
	run, at := l.find(address)
	if at == 0 {
		if run == 0 {
			return nil
		}
		run, at = run-1, len(l.runs[run-1])
	}
	return l.runs[run][at-1]
}

func (l *byAddress) insert(s *segment) {
	run, at := l.find(s.address)
	switch {
	case len(l.runs) == 0:
		l.runs = [][]*segment{{s}}
		return
	case run == len(l.runs): // behind all
		run--
		at = len(l.runs[run])
	}
	full := slices.Insert(l.runs[run], at, s)
	if l.runs[run] = full; len(full) > longestRun {
		half := len(full) / 2
		l.runs = slices.Insert(l.runs, run+1, slices.Clone(full[half:]))
		clear(full[half:])
		l.runs[run] = full[:half]
	}
}

// remove takes out a segment that is there.
func (l *byAddress) remove(s *segment) {
	run, at := l.find(s.address)
	if l.runs[run] = slices.Delete(l.runs[run], at, at+1); len(l.runs[run]) == 0 {
		l.runs = slices.Delete(l.runs, run, run+1)
	}
}

// overlapping returns the first mapping of user-mapped memory that reaches into a range, nil if none does.
func (e *Engine) overlapping(address uintptr, size uint64) *segment {
	if before := e.userMapped.mapped.before(address); before != nil && uint64(address-before.address) < before.size {
		return before
	}
	if next := e.userMapped.mapped.from(address); next != nil && uint64(next.address-address) < size {
		return next
	}
	return nil
}

// allocation is what a caller of Malloc holds: a segment, or a block of one.
type allocation struct {
	segment *segment
	small   bool    // a part of it:
	offset  uintptr // where it begins
}

func (a allocation) address() uintptr { return a.segment.address + a.offset }

// size returns how many bytes the caller asked for.
func (a allocation) size() uint64 {
	switch {
	case a.small:
		return a.segment.slab.Size(a.offset)
	case a.segment.imported != nil:
		return a.segment.imported.size
	}
	return a.segment.size
}

// Unknown returns words about a tag with which nothing was ever allocated, most likely because it is misspelt; "" for
// any other, and where there were too many tags to remember.
func (r Records) Unknown(name string) string { return r.engine.names.Unknown(name) }
