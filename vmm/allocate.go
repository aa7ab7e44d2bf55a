package vmm

import (
	"fmt"

	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/quota"
	"tms/vmm/small"
)

// allocate is Malloc on a device. Where memory is short, it takes some that may serve others better. The caller holds
// e.mu, which is released for driver calls, and during them a tag of nothing may go and come again.
func (e *Engine) allocate(d *device, r *Request, short bool) (address uintptr, err error) {
	if r.Size > d.total {
		return 0, fmt.Errorf("%w, %s", ErrTooLarge, readable.Bytes(d.total))
	}
	p := r.policy()
	if r.Context != d.context && !r.Ordered { // the memory goes with that context, unlike a pool's
		p.context = r.Context
	}

	// Less than a granule is a part of a slab that has room. If there is none, the allocation makes another slab.
	// The part may have been freed in the order of a stream. The slab may first have to be made active.
	inSlab := r.Size < d.granularity
	for woken := false; inSlab; woken = true {
		t, found := d.tag(r.Tag), false
		if r.Ordered {
			address, found = t.takeSmall(e, r, p)
		}
		if of := t.slabs[slabKind{policy: p}]; of != nil && !found {
			var s *segment
			var offset uintptr
			s, offset, found = of.Allocate(r.Size, func(s *segment) bool { return s.owner == nobody })
			if found {
				address = s.address + offset
			}
		}
		if found && r.Ordered {
			e.serveOrdered(d, r, address)
		}
		if found {
			return address, nil
		}
		if woken || !e.wakeSlab(d, t, r, p) {
			break
		}
	}

	// Memory that was freed in the order of a stream serves the next allocation there. Slack serves any. Otherwise the
	// driver makes new memory, within the limit and the margin.
	e.names.Note(r.Tag)
	granules := uint32((r.Size + d.granularity - 1) / d.granularity)
	var s *segment
	if r.Ordered && (short || !inSlab) {
		s = e.takeFreed(d, r, granules, short)
	}
	if s == nil {
		s = d.tag(r.Tag).takeSlack(granules, r.Room)
	}
	if s == nil {
		if s, err = e.newSegment(d, d.tag(r.Tag), granules, inSlab, r.Room); err != nil {
			return 0, err
		}
		size, x := s.length(), newExtent(s)
		request, err := d.quota.Reserve(size, r.Limit)
		if err != nil {
			s.vacate()
			return 0, err
		}
		need := quota.Need{Size: r.Size, Margin: r.Margin, Reserve: r.Reserve, Capturing: r.Capturing}
		err = e.unlocked(func() error {
			e.contexts.FindUsers(d.users, &d.peers)
			if r.Backup != BackupNone && !r.Capturing && !d.streamed.Swap(true) {
				cuda.TakeStreams(e.driver, d.context, streams) // so a pause leaves as much memory in use as it found
			}
			return d.quota.WithinMargin(need, func() error {
				err := x.Make()
				if err != nil {
					_ = x.Unmake() // the cause is what the caller needs
				}
				return err
			})
		})
		if d.quota.Answered(request, size); err != nil {
			e.abandon(s, x, err)
			return 0, err
		}
		s.extent = x
	}
	_ = e.grantMissing(s.extent) // without access a device still cannot copy it: no worse than before

	// The segment becomes one that others find.
	s.state, s.size, s.policy, s.slab, s.dead = active, r.Size, p, nil, nil
	if err := e.enter(s); err != nil {
		return 0, err
	}
	if s.incremental || s.sparse {
		e.hasher.LoadAside(d.context)
	}
	address = s.address
	if inSlab {
		s.slab = small.New(d.granularity)
		s.tag.listSlab(s)
		offset, _ := s.slab.Allocate(r.Size)
		address += offset
	}
	if r.Ordered {
		e.serveOrdered(d, r, address)
	}
	return address, nil
}
