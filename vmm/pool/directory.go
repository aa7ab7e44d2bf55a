package pool

import (
	"sync"

	"tms/vmm/pool/internal/ordered"
)

// Directory finds the owner of the segment in which an address lies. The zero value is empty. Many threads may use it.
type Directory[T any] struct {
	mu       sync.RWMutex
	ends     ordered.Set         // of the segments
	segments map[uint64]owned[T] // by their ends
}

type owned[T any] struct {
	address uintptr
	owner   T
}

// Enter notes the owner of a new segment.
func (d *Directory[T]) Enter(address uintptr, size uint64, owner T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.segments == nil {
		d.segments = map[uint64]owned[T]{}
	}
	end := uint64(address) + size
	d.segments[end] = owned[T]{address, owner}
	d.ends.Insert(end, 0)
}

// Remove forgets the segment that starts at address, and reports whether there was one.
func (d *Directory[T]) Remove(address uintptr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, found := d.ends.Ceiling(uint64(address) + 1)
	if !found || d.segments[e.Key].address != address {
		return false
	}
	d.ends.Take(e)
	delete(d.segments, e.Key)
	return true
}

// Drop forgets the segments of owners that are gone.
func (d *Directory[T]) Drop(isGone func(owner T) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for end, s := range d.segments {
		if isGone(s.owner) {
			d.ends.Remove(end)
			delete(d.segments, end)
		}
	}
}

// Find returns the owner of the segment in which an address lies.
func (d *Directory[T]) Find(address uintptr) (owner T, found bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e, found := d.ends.Ceiling(uint64(address) + 1)
	if s := d.segments[e.Key]; found && s.address <= address {
		return s.owner, true
	}
	return owner, false
}
