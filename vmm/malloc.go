package vmm

import (
	"errors"
	"fmt"
	"strings"

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

	// A copy in host memory would take what a pause frees, where the device's memory is the host's.
	if d.onHost && (r.Backup == BackupHost || r.Backup == BackupSparse) {
		r.Backup, r.Incremental = BackupDisk, false
		d.keptOff.Store(true)
	}
	return d, take(d, false)
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
	// The part may have been freed in the order of a stream. The slab may first have to be made active.
	inSlab := r.Size < d.granularity
	for woken := false; inSlab; woken = true {
		t, found := d.tag(r.Tag), false
		if r.Ordered {
			address, found = t.takeSmall(e, r, p)
		}
		if !found {
			address, found = t.mallocSmall(p, r.Size)
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
		if s, err = e.newSegment(d, d.tag(r.Tag), granules, inSlab, r.Room); err != nil {
			return 0, err
		}
		size, x := s.length(), newExtent(s)
		request, err := d.reserve(size, r.Limit)
		if err != nil {
			s.vacate()
			return 0, err
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

// noteRefused notes that a program wanted memory in vain. It counts what the limit refused, and says so once for a
// device: a program often reports CUDA's code alone.
func (e *Engine) noteRefused(d *device, size uint64, err error) {
	e.mu.Lock()
	if isShort(err) && size <= d.total {
		d.most = max(d.most, d.has+size)
	}
	if !errors.Is(err, ErrLimit) {
		e.mu.Unlock()
		return
	}
	d.refused++
	first := d.refused == 1
	e.mu.Unlock()
	if first {
		e.process.Warn(err.Error() + " (said once; tms ps counts the others)")
	}
}

// Has returns how many bytes of a device count for the program's limit, paused or not.
func (r Records) Has(ordinal int) uint64 {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	if d := r.engine.devices[ordinal]; d != nil {
		return d.has + d.making
	}
	return 0
}

// HasBy is Has by NVML's UUID. NVML names a part of a GPU by a UUID of its own, and CUDA shows a program one part alone.
func (r Records) HasBy(uuid string) uint64 {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	part := strings.HasPrefix(uuid, "MIG-") && len(r.engine.devices) == 1
	for _, d := range r.engine.devices {
		if d.uuid == uuid || part {
			return d.has + d.making
		}
	}
	return 0
}
