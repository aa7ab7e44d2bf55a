package vmm

import (
	"maps"
	"math/bits"
	"slices"

	"tms/vmm/small"
)

// slabKind is what an allocation asks of a slab.
type slabKind struct {
	policy
	paused bool
}

// slabs are the slabs of a tag and kind that may have room, by the logarithm of their longest run of free units as far
// as that is known: so an allocation finds one that has room for it, though many have less.
type slabs [32][]*segment

// smallTries bounds the search among slabs that may have too little room: an allocation that finds none in the last few
// looks at those that have more, and then begins another slab.
const smallTries = 4

// shelfOf returns the shelf of slabs whose longest free run has that size, or -1 for 0 bytes.
func shelfOf(bytes uint64) int { return bits.Len64(bytes/small.Unit) - 1 }

// mallocInSlab serves a request from a slab of its tag: from a part that was freed in the order of a stream, or from
// one with room, which may first have to be made active. The caller holds e.mu, which may be released.
func (e *Engine) mallocInSlab(d *device, r *Request, p policy) (address uintptr, ok bool) {
	for woken := false; ; woken = true {
		t := d.tag(r.Tag)
		if r.Ordered {
			address, ok = t.takeSmall(e, r, p)
		}
		if !ok {
			address, ok = t.mallocSmall(p, r.Size)
		}
		if ok && r.Ordered {
			e.serveOrdered(d, r, address)
		}
		if ok || woken || !e.wakeSlab(d, t, r, p) {
			return address, ok
		}
	}
}

// mallocSmall serves a request from a slab of its tag that has room. The caller holds e.mu.
func (t *tag) mallocSmall(p policy, size uint64) (uintptr, bool) {
	of := t.slabs[slabKind{policy: p}]
	if of == nil {
		return 0, false
	}
	for shelf := max(0, shelfOf(size+small.Unit-1)); shelf < len(of); shelf++ {
		for tries, i := 0, len(of[shelf])-1; i >= 0 && tries < smallTries; tries, i = tries+1, i-1 {
			s := of[shelf][i]
			if s.owner != nobody {
				continue
			}
			if offset, ok := s.slab.Allocate(size); ok {
				return s.address + offset, true
			}
			t.listSlab(s) // it has less than was known
		}
	}
	return 0, false
}

// pausedSlab returns a paused slab that most likely has room for an allocation, and no memory, or nil if there is none.
func (t *tag) pausedSlab(p policy, size uint64) *segment {
	of := t.slabs[slabKind{p, true}]
	if of == nil {
		return nil
	}
	for _, list := range of[max(0, shelfOf(size+small.Unit-1)):] {
		for i := len(list) - 1; i >= max(0, len(list)-smallTries); i-- {
			if s := list[i]; s.owner == nobody && s.extent == nil && !s.gated && s.slab.Most() >= size {
				return s
			}
		}
	}
	return nil
}

// listSlab notes how much room a slab has, and whether it is paused.
func (t *tag) listSlab(s *segment) {
	kind, shelf := slabKind{s.policy, s.state == paused}, shelfOf(s.slab.Most())
	if s.among != nil && s.among == t.slabs[kind] && s.shelf == shelf {
		return
	}
	t.unlistSlab(s)
	if shelf < 0 {
		return
	}
	of := t.slabs[kind]
	if of == nil {
		of = new(slabs)
		t.slabs[kind] = of
	}
	s.among, s.shelf, s.place = of, shelf, len(of[shelf])
	of[shelf] = append(of[shelf], s)
}

// unlistSlab drops a slab from its list: it is about to go, or is full.
func (t *tag) unlistSlab(s *segment) {
	if s.among == nil {
		return
	}
	list := s.among[s.shelf]
	last := len(list) - 1
	list[s.place], list[last].place = list[last], s.place
	list[last] = nil
	s.among[s.shelf] = list[:last]
	s.among = nil
}

// A small allocation that is made while its tag is paused needs active memory. A slab of its own for each pause would
// take a granule for good where hundreds of such allocations fit into one. So the engine makes a paused slab with room
// active again, which takes a granule, too, but leaves none behind.

// wakeSlab makes a paused slab with room for a request active, and reports whether it has. It waits for no other
// transition: the caller then takes a slab of its own, as after an error. The caller holds e.mu, which is released for
// the call. (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) wakeSlab(d *device, t *tag, r *Request, p policy) bool {
	s := t.pausedSlab(p, r.Size)
	if s == nil || r.Capturing || e.preparing > 0 {
		return false
	}
	woken := false
	_ = e.unlocked(func() error {
		return e.withinMargin(d, *r, func() (err error) {
			if !e.transition.TryLock() {
				return nil
			}
			defer e.transition.Unlock()
			woken, err = e.wake(s)
			return err
		})
	})
	return woken
}

// wake is a resume of one slab, by a thread whose turn it is. What is kept of the slab stays where it is until the tag
// is resumed: the program may read it there (BackupPointer).
func (e *Engine) wake(s *segment) (woken bool, err error) {
	o := &operation{Options: Options{RetainBackup: true, Verify: true}}
	wanted := func(of *segment) bool {
		return of == s && s.is(paused) && s.slab != nil && s.extent == nil && !s.gated && s.inTag()
	}
	found := map[*device]*batch{}
	e.mu.Lock()
	if s.owner == nobody && wanted(s) {
		found[s.device] = s.device.newBatch()
		found[s.device].claim(s, wanted)
	}
	e.mu.Unlock()
	err = e.transactOn(e.batches(found), "resume", o, func(batches []*batch) error {
		e.gather(batches, 0)
		err := e.resume(batches, o)
		woken = err == nil
		return err
	}, func(*tag) {
		if s.contents != nil {
			s.device.woken[s] = true
		}
	})
	return woken, err
}

// dropWoken gives up, after a resume, what is kept of slabs that wakeSlab has made active before it.
func (e *Engine) dropWoken(o *operation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var p pace
	for _, d := range slices.Collect(maps.Values(e.devices)) {
		for s := range d.woken {
			if p.yield(e, 1); s.owner != nobody || s.state != active || o.Tags != nil && !slices.Contains(o.Tags, s.tag.name) {
				continue
			}
			delete(d.woken, s)
			if s.contents != nil && s.current && !e.retains(s, o) {
				o.discarded.add(s.contents, s.prompt)
				s.discard()
			}
		}
	}
}
