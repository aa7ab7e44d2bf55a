package vmm

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"tms/internal/readable"
	"tms/vmm/cuda"
)

// A tag's first range has room for an extent, and each later one for as much as the tag has: few ranges
// however much it allocates, few addresses where that is little. A tag of small allocations begins with the
// granule that they share.
const (
	firstRange   = 64 << 20
	largestRange = 16 << 30
)

// A device's first arena has room for its memory, and each later one for as much as there is, so that there
// are few: paused segments keep their addresses, so addresses outnumber memory. Reserving costs microseconds
// whatever the size.
const (
	firstArena   = 64 << 30
	largestArena = 4 << 40
)

// place finds addresses for a segment of a tag; small: for one that small allocations are to share. The caller
// holds e.mu.
func (e *Engine) place(d *device, t *tag, granules uint32, small bool) (*segment, error) {
	s := &segment{device: d, tag: t}
	for _, r := range t.ranges {
		if s.span = r.allocate(granules); s.span != nil {
			s.place = r
			break
		}
	}
	if s.span == nil {
		r, err := e.newRange(d, granules, max(granules, t.nextRange(d.granularity, small)))
		if err != nil {
			e.retire(d, t)
			return nil, err
		}
		t.ranges = append(t.ranges, r)
		t.granules += r.span.count
		s.place, s.span = r, r.allocate(granules)
	}
	s.address = s.place.address(s.span)
	return s, nil
}

// nextRange is how many granules a tag's next range is to have.
func (t *tag) nextRange(granularity uint64, small bool) uint32 {
	if small && t.granules == 0 {
		return 1
	}
	return uint32(min(max(uint64(t.granules), firstRange/granularity), largestRange/granularity))
}

// vacate gives a segment's addresses back.
func (e *Engine) vacate(s *segment) {
	r, t := s.place, s.tag
	r.used -= s.span.count
	r.space.release(s.span)
	if r.used > 0 {
		return
	}
	t.granules -= r.span.count
	r.arena.ranges.release(r.span)
	at := slices.Index(t.ranges, r)
	t.ranges = slices.Delete(t.ranges, at, at+1)
	e.retire(s.device, t)
}

// retire forgets a tag that has nothing any more: programs may name one for each of their steps.
func (e *Engine) retire(d *device, t *tag) {
	if len(t.ranges) == 0 && len(t.segments) == 0 && d.tags[t.name] == t {
		delete(d.tags, t.name)
	}
}

// newRange takes a range of as many granules as are wanted, or fewer where addresses are short, down to what
// is needed.
func (e *Engine) newRange(d *device, need, want uint32) (*addressRange, error) {
	if r := e.fit(d, want, want); r != nil {
		return r, nil
	}
	size := e.nextArena(d)
	if size < uint64(want)*d.granularity {
		if r := e.fit(d, want, need); r != nil {
			return r, nil
		}
		want = need
	}
	a, err := e.reserve(d, max(size, uint64(want)*d.granularity), uint64(need)*d.granularity)
	if err == nil {
		return a.newRange(min(want, uint32(a.size/a.granularity))), nil
	}
	if r := e.fit(d, want, need); r != nil {
		return r, nil
	}
	return nil, err
}

// fit finds a range in the arenas of a device: of most granules or a half, a quarter and so on, down to least;
// nil when there is none.
func (e *Engine) fit(d *device, most, least uint32) *addressRange {
	for granules := most; ; granules = max(least, granules/2) {
		for _, a := range e.arenas {
			if a.ordinal == d.ordinal {
				if r := a.newRange(granules); r != nil {
					return r
				}
			}
		}
		if granules <= least {
			return nil
		}
	}
}

// nextArena is how many bytes a device's next arena may have: where the process is limited, a quarter of the
// addresses that it has left, for the rest is the host's.
func (e *Engine) nextArena(d *device) uint64 {
	size := max(firstArena, uint64(1)<<bits.Len64(d.total-1))
	var held uint64
	for _, a := range e.arenas {
		if a.ordinal == d.ordinal {
			held += a.size
		}
	}
	size = min(max(size, held), largestArena, addressesLeft()/4)
	return size / d.granularity * d.granularity
}

// reserve adds an arena to a device, of size bytes; where the driver refuses that it asks for less, down to
// what is needed.
func (e *Engine) reserve(d *device, size, need uint64) (*arena, error) {
	for {
		base, err := e.driver.MemAddressReserve(size, d.granularity)
		if err == nil {
			return e.addArena(d, base, size)
		}
		if size == need {
			return nil, fmt.Errorf("reserving %s of addresses: %w%s", readable.Bytes(need), err, limitNote(err))
		}
		size = max(need, size/2/d.granularity*d.granularity)
	}
}

func (e *Engine) addArena(d *device, base uintptr, size uint64) (*arena, error) {
	if err := e.announce(base, size); err != nil {
		_ = e.driver.MemAddressFree(base, size)
		return nil, err
	}
	a := newArena(base, size, d.granularity, d.ordinal)
	e.arenas = append(e.arenas, a)
	return a, nil
}

// limitNote says, behind an error for want of addresses, what the process may still map, if that is limited.
func limitNote(err error) string {
	left := addressesLeft()
	if left == math.MaxUint64 || !errors.Is(err, cuda.OutOfMemory) {
		return ""
	}
	return fmt.Sprintf(" (the limit of the process's address space, ulimit -v, leaves %s)", readable.Bytes(left))
}
