package vmm

import (
	"fmt"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
)

// userMapped is memory that a program makes and maps itself, with the driver's functions for virtual memory, inside a
// region, or got from another process (usermapped_share.go). It is a segment of its tag while it is mapped; its extent
// is its own, made as the program asked for it. The program knows it by a handle of the engine's, because a resume puts
// a new handle of the driver's behind it. Its addresses lie outside the arenas, in reservations that stay the
// program's.
type userMapped struct {
	handle     cuda.Handle // the engine's
	size       uint64      // of the memory; the mapping may be shorter
	prop       cuda.AllocationProp
	references int         // to the handle; a mapping keeps the memory without any
	mapped     bool        // as the program sees it: also while paused
	access     cuda.Access // of the mapping
	pinned     int         // others got the memory itself, or it has more addresses: it cannot be replaced then
}

// userMappings is what the engine knows of user-mapped memory.
type userMappings struct {
	made   uint64
	known  map[cuda.Handle]*segment
	mapped byAddress
	again  []again // further mappings of what is mapped already, by address
}

// again is a further mapping of memory.
type again struct {
	address uintptr
	of      *segment
}

// handlePrefix stands at the top of the engine's handles: the driver's are addresses or small numbers.
const (
	handlePrefix = 0x746d73
	handleShift  = 40
)

// byHandle finds settled memory by a handle of the engine's that the program may use. The caller holds e.mu.
func (e *Engine) byHandle(handle cuda.Handle) (*segment, error) {
	if handle>>handleShift != handlePrefix {
		return nil, ErrNotOurs
	}
	for {
		s := e.userMapped.known[handle]
		if s == nil || s.userMapped.references == 0 {
			return nil, fmt.Errorf("handle %#x names no memory, or was released%.0w", uint64(handle), cuda.InvalidValue)
		}
		if s.settled() {
			return s, nil
		}
		e.settled.Wait()
	}
}

// settled reports whether no transition or other call works on user-mapped memory.
func (s *segment) settled() bool {
	return s.owner == nobody && (s.extent == nil || s.extent.owner == nobody)
}

// unmapped notes that mappings side by side have gone; the caller then calls releaseUnused. The caller holds e.mu.
func (e *Engine) unmapped(segments []*segment) {
	for _, s := range segments {
		e.userMapped.mapped.remove(s)
		if s.address = 0; s.extent != nil {
			s.extent.Step = min(s.extent.Step, mapping.Created)
			s.extent.Address = 0
		}
		s.userMapped.mapped, s.userMapped.access = false, nil
		e.leaveUnmapped(s)
	}
}

// releaseUnused ends memory that the program neither refers to nor maps, unless another thread has ended it; release
// is for its extent. The caller holds e.mu, which is released for driver calls.
func (e *Engine) releaseUnused(s *segment, release func() error) error {
	for !s.settled() {
		e.settled.Wait()
	}
	if s.userMapped.references > 0 || s.userMapped.mapped || e.userMapped.known[s.userMapped.handle] != s {
		return nil
	}
	if x := s.extent; x != nil {
		if err := e.engage([]*extent{x}, release); err != nil {
			return err
		}
	}
	if s.listed {
		s.tag.remove(s)
		s.device.retire(s.tag)
		e.tellPaused()
	}
	if s.imported == nil {
		s.device.quota.Has -= s.userMapped.size
	}
	e.sharing.forget(s)
	s.discard()
	delete(e.userMapped.known, s.userMapped.handle)
	return nil
}

// dropAtReset gives up memory that goes with a reset of the device. The program may still unmap and release it.
func (e *Engine) dropAtReset(s *segment) {
	for !s.settled() {
		e.settled.Wait()
	}
	if x := s.extent; x == nil || e.engage([]*extent{x}, x.Unmake) == nil {
		s.extent = nil
	}
	s.become(paused)
	s.discard()
}

// eachPart goes through a range that has user-mapped memory in it. The driver does what concerns its own mappings, as
// many at a time as lie between paused ones, up to stride; then eachPart calls note with the user-mapped ones among
// them, which lie side by side. For paused ones it only calls note, which must not release e.mu. An error leaves the
// parts before it done. The caller holds e.mu, which is released for driver calls.
func (e *Engine) eachPart(address uintptr, size uint64, do func(*cuda.Driver, uintptr, uint64) error,
	note func([]*segment)) error {
	if e.overlapping(address, size) == nil {
		return ErrNotOurs
	}
	end := address + uintptr(size)
	for _, s := range []*segment{e.overlapping(address, 1), e.overlapping(end-1, 1)} {
		if s != nil && (s.address < address || s.address+uintptr(s.size) > end) {
			return fmt.Errorf("this is a part of the mapping at %#x, which can be changed only whole%.0w", s.address,
				cuda.InvalidValue)
		}
	}
	for address < end {
		upTo, segments := e.part(address, end)
		if segments == nil || segments[0].onDevice() {
			var extents []*extent
			for _, s := range segments {
				extents = append(extents, s.extent)
			}
			if err := e.engage(extents, func() error {
				return do(e.driver, address, uint64(upTo-address))
			}); err != nil {
				return err
			}
		}
		if segments != nil {
			note(segments)
		}
		address = upTo
	}
	return nil
}

// part returns where the next part of a range ends, and the user-mapped memory in it, settled.
func (e *Engine) part(address, end uintptr) (uintptr, []*segment) {
again:
	var segments []*segment
	for at := address; at < end; {
		s := e.overlapping(at, uint64(end-at))
		switch {
		case s == nil:
			return end, segments
		case len(segments) >= stride:
			return at, segments
		case !s.settled():
			e.settled.Wait()
			goto again
		case s.onDevice():
			segments = append(segments, s)
		case s.address > address:
			return s.address, segments
		default:
			return s.address + uintptr(s.size), []*segment{s}
		}
		at = s.address + uintptr(s.size)
	}
	return end, segments
}

// onDevice reports whether the driver has the mapping.
func (s *segment) onDevice() bool { return s.extent != nil && s.extent.Step >= mapping.Mapped }
