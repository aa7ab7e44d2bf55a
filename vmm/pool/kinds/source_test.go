package kinds_test

import (
	"fmt"

	"tms/vmm/pool"
)

// Source is a pool.Source over a range of addresses that notes its segments and refuses on request. Like any source it
// has no lock: the race detector then sees a pool that calls it without its own.
type Source struct {
	addresses *pool.Range
	capacity  uint64
	held      []span // by address
	asked     []uint64
	reserved  uint64
	peak      uint64

	// Allocate and Free return Refuse and RefuseFree if those are not nil.
	Refuse     error
	RefuseFree error

	allocated, freed, refused uint64 // calls
	apart                     bool   // its segments do not coalesce
	across                    bool   // Reserve was asked, and they do
	wrong                     error  // the first call that no pool may make
}

// The first address: no pool may rely on small addresses, or on more alignment than the 512 bytes that a Source
// promises.
const base = 0x7f00_0000_0200

// NewSource returns a Source of capacity bytes.
func NewSource(capacity uint64) *Source {
	return &Source{addresses: pool.NewRange(base, capacity), capacity: capacity}
}

func (s *Source) Allocate(size uint64) (uintptr, error) {
	s.asked = append(s.asked, size)
	if s.Refuse != nil {
		s.refused++
		return 0, s.Refuse
	}
	address, err := s.addresses.Allocate(size)
	if err != nil {
		s.refused++
		return 0, err
	}
	s.held = insert(s.held, span{uint64(address), size})
	s.allocated++
	s.reserved += size
	s.peak = max(s.peak, s.reserved)
	return address, nil
}

func (s *Source) Free(address uintptr, size uint64) error {
	if s.RefuseFree != nil {
		s.refused++
		return s.RefuseFree
	}
	i, found := find(s.held, uint64(address))
	if !found || s.held[i].size != size {
		if s.wrong == nil {
			s.wrong = fmt.Errorf("gave back %d bytes at %#x, which was never a segment", size, address)
		}
		return pool.ErrInvalidAddress
	}
	s.held = remove(s.held, i)
	s.freed++
	s.reserved -= size
	return s.addresses.Free(address, size)
}

// Reserve is pool.Coalescer.Reserve. A pool that asks may have blocks that lie across segments.
func (s *Source) Reserve(*pool.Room) bool {
	s.across = !s.apart
	return s.across
}

func (s *Source) Coalesces(_, _ uintptr) bool { return !s.apart }

// Held returns how many segments and bytes pools have.
func (s *Source) Held() (segments int, bytes uint64) { return len(s.held), s.reserved }
