package vmm

import (
	"errors"
	"fmt"

	"tms/internal/aid/guard"
	"tms/internal/aid/readable"
	"tms/vmm/cuda"
	"tms/vmm/small"
	"tms/vmm/space"
	"tms/vmm/stats"
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
	Room        *space.Room  // addresses of a pool, where its segments lie side by side, or nil for any of the tag's
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
	err = e.obtain(&r, "allocating", func(d *device, short bool) error {
		if r.Size > d.total {
			return fmt.Errorf("%w, %s", ErrTooLarge, readable.Bytes(d.total))
		}
		address, err = e.malloc(d, &r, short)
		return err
	})
	if err != nil {
		return 0, err
	}
	return address, nil
}

// obtain makes memory of a device, by take, which is called with e.mu and may release it. It tries again when memory was
// short while frees that callers believe done were pending, when slack can be given back, and when the device was reset.
// doing names the purpose in errors.
func (e *Engine) obtain(r *Request, doing string, take func(d *device, short bool) error) error {
	for {
		if err := e.tryObtain(r, doing, take); !errors.Is(err, errReset) {
			return err
		}
	}
}

func (e *Engine) tryObtain(r *Request, doing string, take func(d *device, short bool) error) error {
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
		err = e.await(d, again, &made, err)
	}
	if isShort(err) && !r.Capturing && e.MakeRoom(r.Device) {
		err = again()
	}
	if err != nil {
		return fmt.Errorf("%s %s on device %d: %w%s", doing, readable.Bytes(r.Size), r.Device, err, e.slackNote(d, err))
	}
	return nil
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
	return d, take(d, false)
}

// isShort reports whether an allocation may succeed once other memory of the process is free.
func isShort(err error) bool {
	return errors.Is(err, cuda.OutOfMemory) || errors.Is(err, ErrMargin) || errors.Is(err, ErrLimit)
}

// await takes memory that was short, with err, as frees are made.
func (e *Engine) await(d *device, take func() error, made *uint64, err error) error {
	defer e.want(d)()
	if e.renew() > 0 {
		err = take()
	}
	for isShort(err) && e.awaitFree(d, made) {
		err = take()
	}
	return err
}

// malloc takes memory from the tag's slabs, from what was freed in the order of a stream or into slack, or else from the
// driver. The caller holds e.mu, which is released for driver calls.
func (e *Engine) malloc(d *device, r *Request, short bool) (uintptr, error) {
	inSlab := r.Size < d.granularity
	granules := uint32((r.Size + d.granularity - 1) / d.granularity)
	t := d.tag(r.Tag)
	if inSlab {
		address, ok := e.mallocFromTag(d, t, r)
		if !ok && e.wakeSlab(d, t, r) {
			t = d.tag(r.Tag)
			address, ok = e.mallocFromTag(d, t, r)
		}
		if ok {
			return address, nil
		}
	}
	e.noteName(r.Tag)
	var s *segment
	if r.Ordered && (short || !inSlab) {
		if s = e.takeFreed(t, r, granules, short); s == nil && len(e.pending.lines) > 0 {
			e.pollAll() // costs less than new memory
			t = d.tag(r.Tag)
			s = e.takeFreed(t, r, granules, short)
		}
		t = d.tag(r.Tag)
	}
	if s == nil {
		s = t.takeSlack(granules, r.Room)
	}
	if s == nil {
		var err error
		if s, err = e.newSegment(d, t, granules, inSlab, r.Room); err != nil {
			return 0, err
		}
		if err = e.makeWithin(d, s, r); err != nil {
			return 0, err
		}
	}
	_ = e.grantMissing(s.extent) // without access a device still cannot copy it: no worse than before
	s.state, s.size, s.policy, s.slab, s.dead = active, r.Size, r.policyOn(d), nil, nil
	if err := e.enter(s); err != nil {
		return 0, err
	}
	if s.incremental || s.sparse {
		e.loadHasher(d)
	}
	address := s.address
	if inSlab {
		s.slab = small.New(d.granularity)
		t.listSlab(s)
		offset, _ := s.slab.Allocate(r.Size)
		address += offset
	}
	if r.Ordered {
		e.serveOrdered(d, r, address)
	}
	return address, nil
}

// mallocFromTag serves a small request from memory that its tag has. The caller holds e.mu.
func (e *Engine) mallocFromTag(d *device, t *tag, r *Request) (address uintptr, ok bool) {
	if r.Ordered {
		address, ok = t.takeSmall(e, r)
	}
	if !ok {
		address, ok = t.mallocSmall(r.policyOn(d), r.Size)
	}
	if ok && r.Ordered {
		e.serveOrdered(d, r, address)
	}
	return address, ok
}

// newSegment finds addresses for a segment of a tag. With inSlab, small allocations are to share the segment. The
// caller holds e.mu.
func (e *Engine) newSegment(d *device, t *tag, granules uint32, inSlab bool, room *space.Room) (*segment, error) {
	span, err := t.ranges.Allocate(granules, inSlab, room)
	if err != nil {
		d.retire(t)
		return nil, err
	}
	return &segment{device: d, tag: t, span: span, address: span.Address()}, nil
}

func (s *segment) vacate() {
	s.span.Release()
	s.device.retire(s.tag)
}

// makeWithin makes memory for a segment, within the limit and the margin, on the calling thread. After an error it leaves
// nothing behind, if the driver allows that. The caller holds e.mu, which is released for driver calls.
func (e *Engine) makeWithin(d *device, s *segment, r *Request) error {
	size := s.length()
	if err := d.reserve(size, r.Limit); err != nil {
		s.vacate()
		return err
	}
	x := newExtent(s)
	err := e.unlocked(func() error {
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
	d.making -= size
	if err != nil {
		e.abandon(s, x, err)
		return err
	}
	s.extent = x
	return nil
}

// reserve notes memory that is about to be made, if the limit leaves room for it. A limit of 0 is no limit. The caller
// takes it from making when the memory counts in has, or could not be made. The caller holds the engine's lock.
func (d *device) reserve(size, limit uint64) error {
	if has := d.has + d.making; limit > 0 && has+size > limit {
		return fmt.Errorf("%w: %s of %s", ErrLimit, readable.Bytes(has), readable.Bytes(limit))
	}
	d.making += size
	return nil
}

// withinMargin takes whole granules of a device's memory if that leaves the margin, even while a stream is being
// captured. One thread at a time looks and takes.
func (e *Engine) withinMargin(d *device, r Request, take func() error) error {
	if r.Capturing {
		r.Capturing = false
		return e.driver.Relaxed(func() error { return e.withinMargin(d, r, take) })
	}
	if r.Reserve {
		r.Margin = max(r.Margin, stats.Reserve(d.total))
	}
	if r.Margin == 0 {
		return take()
	}
	d.margins.Lock()
	defer d.margins.Unlock()
	size := (r.Size + d.granularity - 1) / d.granularity * d.granularity
	free, err := d.freeBytes()
	if err != nil {
		return err
	}
	if free < size || free-size < r.Margin {
		return fmt.Errorf("%w: %s free, margin %s", ErrMargin, readable.Bytes(free), readable.Bytes(r.Margin))
	}
	return take()
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
