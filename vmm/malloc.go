package vmm

import (
	"errors"
	"fmt"

	"tms/internal/aid/guard"
	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/small"
	"tms/vmm/space"
)

// Request is an allocation to make.
type Request struct {
	Size   uint64 // bytes
	Device int    // CUDA ordinal
	Tag    string
	Backup BackupKind
	// Incremental, of BackupHost: the next pauses copy only blocks whose contents have changed, so the
	// host copy is kept from one to the next.
	Incremental bool
	Target      int          // of BackupPeer: the ordinal of the device that keeps contents, or -1 for any
	Margin      uint64       // bytes of device memory that must stay free
	Reserve     bool         // stats.Reserve must stay free, too
	Context     cuda.Context // current in the calling thread, or 0 if there is none or it is unknown
	Limit       uint64       // bytes that the process may have of the device, paused or not, or 0 for no limit
	Capturing   bool         // a stream of the process is being captured
	Prompt      bool         // a resume or free waits, however long, until the host memory that it gives up is back
	Room        *space.Room  // addresses where some segments lie side by side, or nil for any of the tag's
	Ordered     bool         // the memory is used in the order of a stream, as cudaMallocAsync's is:
	Stream      cuda.Stream
	Keep        uint64   // the release threshold: unused bytes for stream order that stay mapped
	Repeated    Repeated // nil if the memory is not offered
	order       order    // of it
}

// Malloc makes an active segment, or for less than a granule a part of one, on the calling thread, and returns its
// address, or 0 for no bytes. Like cudaMalloc it leaves the device's primary context current in a thread that had none.
// Addresses are aligned to 512 bytes. Errors: ErrTooLarge, ErrMargin, ErrLimit, ErrContext, *cuda.Error. (cuMemCreate,
// cuMemMap, cuMemSetAccess)
func (e *Engine) Malloc(r Request) (address uintptr, err error) {
	defer e.audit(&err)
	if r.Size == 0 {
		return 0, nil
	}
	if r.Ordered {
		r.order = e.orderOf(r.Stream)
	}
	err = e.obtain(&r, "allocating", func(d *device, short bool) (err error) {
		address, err = e.allocate(d, &r, short)
		return err
	})
	if err != nil {
		return 0, err
	}
	return address, nil
}

// obtain makes memory of a device, by take, which is called with e.mu and may release it. It tries again when memory
// was short while frees that callers believe done were pending, when slack can be given back, and when the device was
// reset. doing names the purpose in errors.
func (e *Engine) obtain(r *Request, doing string, take func(d *device, short bool) error) error {
	for {
		var made uint64
		d, err := e.obtainAtOnce(r, &made, take)
		if d == nil {
			return err
		}
		again := func() error {
			e.lockFor(r)
			defer e.mu.Unlock()
			return take(d, true)
		}
		if isShort(err) && r.Ordered {
			err = again()
		}
		if isShort(err) && !r.Capturing {
			err = e.awaitFrees(d, again, &made, err)
		}
		if isShort(err) && !r.Capturing && e.MakeRoom(r.Device) {
			err = again()
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, errReset) {
			err = fmt.Errorf("%s %s on device %d: %w%s", doing, readable.Bytes(r.Size), r.Device, err,
				e.slackNote(d, err))
			e.noteRefused(d, r.Size, err)
			return err
		}
	}
}

// obtainAtOnce is the first try. It returns no device where none can be asked for memory. The lock is taken only once
// for a thread in the device's primary context.
func (e *Engine) obtainAtOnce(r *Request, made *uint64, take func(d *device, short bool) error) (*device, error) {
	e.lockFor(r)
	defer e.mu.Unlock()
	d, err := e.device(r.Device)
	if err != nil {
		return nil, err
	}
	*made = d.made
	if r.Context != d.context {
		e.mu.Unlock()
		err := guard.Call(func() error { return e.admit(d, r.Context) })
		e.lockFor(r) // unlike unlocked, which would end the offers of live memory
		if err != nil {
			return nil, err
		}
	}
	d.keepOffHost(r)
	return d, take(d, false)
}

// keepOffHost has contents saved in files where the device's memory is the host's: a copy in host memory would take what
// a pause frees.
func (d *device) keepOffHost(r *Request) {
	if d.onHost && (r.Backup == BackupHost || r.Backup == BackupSparse) {
		r.Backup, r.Incremental = BackupDisk, false
		d.keptOff.Store(true)
	}
}

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
	inSlab := r.Size < d.granularity
	if inSlab {
		if address, ok := e.mallocInSlab(d, r, p); ok {
			return address, nil
		}
	}

	// Memory that was freed in the order of a stream serves the next allocation there. Slack serves any. Otherwise the
	// driver makes new memory.
	e.noteName(r.Tag)
	granules := uint32((r.Size + d.granularity - 1) / d.granularity)
	var s *segment
	if r.Ordered && (short || !inSlab) {
		s = e.takeFreed(d, r, granules, short)
	}
	if s == nil {
		s = d.tag(r.Tag).takeSlack(granules, r.Room)
	}
	if s == nil {
		if s, err = e.makeSegment(d, r, granules, inSlab); err != nil {
			return 0, err
		}
	}
	_ = e.grantMissing(s.extent) // without access a device still cannot copy it: no worse than before

	// The segment becomes one that others find.
	s.state, s.size, s.policy, s.slab, s.dead = active, r.Size, p, nil, nil
	if err := e.enter(s); err != nil {
		return 0, err
	}
	if s.incremental || s.sparse {
		e.loadHasher(d)
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

// makeSegment has the driver make memory for a segment, within the limit and the margin. With inSlab, small allocations
// are to share it. An error leaves nothing behind, if the driver allows that. The caller holds e.mu, which is released
// for driver calls.
func (e *Engine) makeSegment(d *device, r *Request, granules uint32, inSlab bool) (*segment, error) {
	s, err := e.newSegment(d, d.tag(r.Tag), granules, inSlab, r.Room)
	if err != nil {
		return nil, err
	}
	size, x := s.length(), newExtent(s)
	request, err := d.reserve(size, r.Limit)
	if err != nil {
		s.vacate()
		return nil, err
	}
	err = e.unlocked(func() error {
		e.refreshUsers(d)
		if r.Backup != BackupNone && !r.Capturing {
			d.haveStreams()
		}
		return e.withinMargin(d, *r, func() error {
			err := x.make()
			if err != nil {
				_ = x.unmake() // the cause is what the caller needs
			}
			return err
		})
	})
	if d.answered(request, size); err != nil {
		e.abandon(s, x, err)
		return nil, err
	}
	s.extent = x
	return s, nil
}

// isShort reports whether an allocation may succeed once other memory of the process is free.
func isShort(err error) bool {
	return errors.Is(err, cuda.OutOfMemory) || errors.Is(err, ErrMargin) || errors.Is(err, ErrLimit)
}

// abandon ends a segment whose extent could not be made; where the driver refuses to undo it, a free does so later.
func (e *Engine) abandon(s *segment, x *extent, err error) {
	if x.step == none {
		s.vacate()
		return
	}
	s.state, s.owner, s.extent = paused, aFree, x
	s.span.Enter(s)
	s.tag.add(s)
	e.putOff(pendingFree{allocation: allocation{segment: s}, stage: refused, why: refusedPrefix + err.Error()})
}
