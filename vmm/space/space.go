package space

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/bits"

	"tms/internal/aid/readable"
	"tms/vmm/cuda"
)

// A device's first arena has room for its memory, and each later one for as much as all before it, so that there are
// few. Paused segments keep their addresses, so addresses outnumber memory. Reserving costs microseconds whatever the
// size.
const (
	firstArena   = 64 << 30
	largestArena = 4 << 40
)

// Driver reserves addresses: *cuda.Driver. (cuMemAddressReserve, cuMemAddressFree) End is for addresses that cannot be
// used.
type Driver interface {
	MemAddressReserve(size, alignment uint64) (uintptr, error)
	MemAddressFree(address uintptr, size uint64) error
	End(what string, end func() error)
}

// Device is what matters about a GPU here.
type Device struct {
	Ordinal     int
	Granularity uint64 // bytes of a granule
	Total       uint64 // bytes of memory
}

// Space is the arenas of all devices, in which spans have owners of type T.
type Space[T any] struct {
	driver   Driver
	announce func(base uintptr, size uint64) error
	arenas   []*arena[T]
}

// New returns a space without arenas. It calls announce with each arena before it hands out an address in it; an error
// from announce fails the allocation.
func New[T any](driver Driver, announce func(base uintptr, size uint64) error) *Space[T] {
	return &Space[T]{driver: driver, announce: announce}
}

// Find returns the owner of an address, nil if there is none, and whether the address lies in an arena.
func (s *Space[T]) Find(address uintptr) (owner *T, inside bool) {
	for _, a := range s.arenas {
		if a.contains(address) {
			return a.owner(address), true
		}
	}
	return nil, false
}

// OneArena reports whether two addresses lie in the same arena, which is one reservation.
func (s *Space[T]) OneArena(low, high uintptr) bool {
	for _, a := range s.arenas {
		if a.contains(low) {
			return a.contains(high)
		}
	}
	return false
}

// Owners goes through all granules that have an owner: the first address of each, and the owner.
func (s *Space[T]) Owners() iter.Seq2[uintptr, *T] {
	return func(yield func(uintptr, *T) bool) {
		for _, a := range s.arenas {
			for n, l := range a.leaves {
				if l == nil {
					continue
				}
				for m, owner := range l {
					address := a.base + uintptr(uint64(n*leafGranules+m)*a.granularity)
					if owner != nil && !yield(address, owner) {
						return
					}
				}
			}
		}
	}
}

// take takes a range of as many granules as are wanted, or fewer where addresses are short, down to what
// is needed.
func (s *Space[T]) take(d Device, need, want uint32) (*arena[T], *block, error) {
	if a, b := s.fit(d, want, want); b != nil {
		return a, b, nil
	}
	size := s.nextArena(d)
	if size < uint64(want)*d.Granularity {
		if a, b := s.fit(d, want, need); b != nil {
			return a, b, nil
		}
		want = need
	}
	a, err := s.reserve(d, max(size, uint64(want)*d.Granularity), uint64(need)*d.Granularity)
	if err == nil {
		return a, a.ranges.allocate(min(want, uint32(a.size/a.granularity))), nil
	}
	if a, b := s.fit(d, want, need); b != nil {
		return a, b, nil
	}
	return nil, nil, err
}

// fit finds room in the arenas of a device: for most granules, or for a half, a quarter and so on, down to least; nil
// when there is none.
func (s *Space[T]) fit(d Device, most, least uint32) (*arena[T], *block) {
	for granules := most; ; granules = max(least, granules/2) {
		for _, a := range s.arenas {
			if a.ordinal == d.Ordinal {
				if b := a.ranges.allocate(granules); b != nil {
					return a, b
				}
			}
		}
		if granules <= least {
			return nil, nil
		}
	}
}

// nextArena returns how many bytes a device's next arena may have: where the process is limited, a quarter of the
// addresses that it has left, because the rest is the host's.
func (s *Space[T]) nextArena(d Device) uint64 {
	size := max(firstArena, uint64(1)<<bits.Len64(d.Total-1))
	var held uint64
	for _, a := range s.arenas {
		if a.ordinal == d.Ordinal {
			held += a.size
		}
	}
	size = min(max(size, held), largestArena, addressesLeft()/4)
	return size / d.Granularity * d.Granularity
}

// reserve adds an arena to a device, of size bytes; where the driver refuses that, it asks for less, down to what is
// needed.
func (s *Space[T]) reserve(d Device, size, need uint64) (*arena[T], error) {
	for {
		base, err := s.driver.MemAddressReserve(size, d.Granularity)
		if err == nil {
			return s.add(d, base, size)
		}
		if size == need {
			return nil, fmt.Errorf("reserving %s of addresses: %w%s", readable.Bytes(need), err, limitNote(err))
		}
		size = max(need, size/2/d.Granularity*d.Granularity)
	}
}

func (s *Space[T]) add(d Device, base uintptr, size uint64) (*arena[T], error) {
	if err := s.announce(base, size); err != nil {
		s.driver.End("addresses", func() error { return s.driver.MemAddressFree(base, size) })
		return nil, err
	}
	a := newArena[T](base, size, d)
	s.arenas = append(s.arenas, a)
	return a, nil
}

// limitNote returns the text that tells, behind an error for lack of addresses, what the process may still map, if that
// is limited.
func limitNote(err error) string {
	left := addressesLeft()
	if left == math.MaxUint64 || !errors.Is(err, cuda.OutOfMemory) {
		return ""
	}
	return fmt.Sprintf(" (the limit of the process's address space, ulimit -v, leaves %s)", readable.Bytes(left))
}
