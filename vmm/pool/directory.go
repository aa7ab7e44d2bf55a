package pool

import (
	"sync"

	"tms/vmm/pool/internal/ordered"
)

// Directory says who owns the segment in which an address lies. The zero value is empty; it is safe for use by many
// threads.
type Directory[T any] struct {
	mu       sync.RWMutex
	ends     ordered.Set // of the segments, and where they are in segments
	segments []owned[T]
	vacant   []uint32 // places in segments that are not in use
}

type owned[T any] struct {
	Block
	owner T
}

// Enter notes the owner of a new segment.
func (d *Directory[T]) Enter(address uintptr, size uint64, owner T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := uint32(len(d.segments))
	if last := len(d.vacant) - 1; last >= 0 {
		at, d.vacant = d.vacant[last], d.vacant[:last]
	} else {
		d.segments = append(d.segments, owned[T]{})
	}
	d.segments[at] = owned[T]{Block{address, size}, owner}
	d.ends.Insert(uint64(address)+size, at)
}

// Remove forgets the segment that starts at address, and reports whether there was one.
func (d *Directory[T]) Remove(address uintptr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, found := d.ends.Ceiling(uint64(address) + 1)
	if !found || d.segments[e.Value].Address != address {
		return false
	}
	d.ends.Take(e)
	d.segments[e.Value] = owned[T]{}
	d.vacant = append(d.vacant, e.Value)
	return true
}

// Drop forgets the segments of owners that are gone.
func (d *Directory[T]) Drop(isGone func(owner T) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for e, found := d.ends.Ceiling(0); found; e, found = d.ends.Ceiling(e.Key + 1) {
		if s := &d.segments[e.Value]; isGone(s.owner) {
			d.ends.Take(e)
			*s = owned[T]{}
			d.vacant = append(d.vacant, e.Value)
		}
	}
}

// Find returns the owner of the segment in which an address lies.
func (d *Directory[T]) Find(address uintptr) (owner T, found bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e, found := d.ends.Ceiling(uint64(address) + 1)
	if !found || d.segments[e.Value].Address > address {
		return owner, false
	}
	return d.segments[e.Value].owner, true
}
