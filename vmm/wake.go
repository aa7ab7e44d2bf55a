package vmm

import (
	"maps"
	"slices"

	"tms/vmm/quota"
)

// A small allocation that is made while its tag is paused needs active memory. A slab of its own for each pause would
// take a granule for good where hundreds of such allocations fit into one. So the engine makes a paused slab with room
// active again, which takes a granule, too, but leaves none behind.

// wakeSlab makes a paused slab with room for a request active, and reports whether it has. It waits for no other
// transition: the caller then takes a slab of its own, as after an error. The caller holds e.mu, which is released for
// the call. (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) wakeSlab(d *device, t *tag, r *Request, p policy) bool {
	of := t.slabs[slabKind{p, true}]
	if of == nil || r.Capturing || e.preparing > 0 {
		return false
	}
	s := of.Find(r.Size, func(s *segment) bool { return s.owner == nobody && s.extent == nil && !s.gated })
	if s == nil {
		return false
	}
	woken := false
	need := quota.Need{Size: r.Size, Margin: r.Margin, Reserve: r.Reserve, Capturing: r.Capturing}
	_ = e.unlocked(func() error {
		return d.quota.WithinMargin(need, func() (err error) {
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

// wake is a resume of one slab, by a thread whose turn it is. What is saved of the slab stays where it is until the tag
// is resumed: the program may read it there (BackupPointer).
func (e *Engine) wake(s *segment) (woken bool, err error) {
	o := &operation{Options: Options{RetainBackup: true, Verify: true}}
	wanted := func(of *segment) bool {
		return of == s && s.state == paused && s.owner != aFree && s.slab != nil && s.extent == nil && !s.gated &&
			s.listed
	}
	found := map[*device]*batch{}
	e.mu.Lock()
	if s.owner == nobody && wanted(s) {
		found[s.device] = s.device.newBatch()
		found[s.device].claim(s, wanted)
	}
	e.mu.Unlock()
	batches := e.batches(found)
	err = e.transactOn(batches, "resume", o, func(batches []*batch) error {
		e.gather(batches, 0, nil)
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

// dropWoken gives up, after a resume, what is saved of slabs that wakeSlab has made active before it.
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
				o.discarded.Add(s.contents, s.prompt)
				s.discard()
			}
		}
	}
}
