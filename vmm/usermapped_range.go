package vmm

import (
	"cmp"
	"fmt"
	"slices"

	"tms/vmm/cuda"
)

// eachPart goes through a range that has user-mapped memory in it. The driver does what concerns its own mappings, as
// many at a time as lie between paused ones; then eachPart calls note for the user-mapped ones among them. For paused
// ones it only calls note, which must not release e.mu. An error leaves the parts before it done. The caller holds
// e.mu, which is released for driver calls.
func (e *Engine) eachPart(address uintptr, size uint64, do func(*cuda.Driver, uintptr, uint64) error,
	note func(*segment)) error {
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
		for _, s := range segments {
			note(s)
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
func (s *segment) onDevice() bool { return s.extent != nil && s.extent.step >= mapped }

// overlapping returns the first mapping of user-mapped memory that reaches into a range, nil if none does.
func (e *Engine) overlapping(address uintptr, size uint64) *segment {
	list := e.userMapped.mapped
	at, found := slices.BinarySearchFunc(list, address, compareAddress)
	if !found && at > 0 && uint64(address-list[at-1].address) < list[at-1].size {
		return list[at-1]
	}
	if at < len(list) && uint64(list[at].address-address) < size {
		return list[at]
	}
	return nil
}

func compareAddress(s *segment, address uintptr) int { return cmp.Compare(s.address, address) }
