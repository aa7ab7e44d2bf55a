package vmm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"tms/internal/guard"
	"tms/internal/readable"
	"tms/vmm/backup/disk"
	"tms/vmm/backup/host"
	"tms/vmm/backup/peer"
	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/small"
	"tms/vmm/space"
)

// Engine is safe for use by many threads.
type Engine struct {
	driver   *cuda.Driver
	host     *host.Store
	disk     *disk.Store
	peer     *peer.Store
	hasher   *digest.Hasher
	contexts Contexts
	warn     func(string)

	shareable bool

	cannotHash sync.Once // the note of it

	// transition is held through what works on many segments at once: a pause, a resume, a preparation, a
	// reset. They run one at a time.
	transition ticketLock

	// mu guards everything below. It is never held over a driver call, but for the first
	// allocation of a device and the reservation of an arena.
	mu      sync.Mutex
	settled sync.Cond // a pause or resume, or the loading of a kernel, has ended
	devices map[int]*device
	space   *space.Space[segment]
	pending []*pendingFree
	reaping bool            // a thread makes those of them that are due
	loading int             // kernels of the content hash
	names   map[string]bool // tags that were ever used
	unknown map[string]bool // those that never were, as was told

	userMapped userMappings

	checking atomic.Bool // see CheckInvariants
}

// New returns an engine on a driver. announce is called, under a lock, with the address range of
// each new arena; an error from it fails the allocation.
func New(driver *cuda.Driver, announce func(base uintptr, size uint64) error) *Engine {
	e := &Engine{
		driver:     driver,
		host:       host.New(driver),
		disk:       disk.New(driver),
		hasher:     digest.New(driver),
		space:      space.New[segment](driver, announce),
		contexts:   func(int, func(cuda.Context) error) error { return nil },
		warn:       func(string) {},
		devices:    map[int]*device{},
		names:      map[string]bool{},
		unknown:    map[string]bool{},
		userMapped: userMappings{known: map[cuda.Handle]*segment{}},
	}
	e.peer = peer.New(driver, e.host)
	e.transition.init()
	e.settled.L = &e.mu
	return e
}

// Request is an allocation to make.
type Request struct {
	Size   uint64 // bytes
	Device int    // CUDA ordinal
	Tag    string
	Backup BackupKind
	// Incremental, of BackupHost: the next pauses copy only blocks whose contents have changed, so the
	// host copy is kept from one to the next.
	Incremental bool
	Target      int          // of BackupPeer: the ordinal of the device that keeps contents; -1: any
	Margin      uint64       // bytes of device memory that must stay free; 0: no margin
	Context     cuda.Context // current to the calling thread; 0: none, or not known
	Capturing   bool         // a stream of the process is being captured
	Prompt      bool         // a resume or free waits, however long, until the host memory that it gives up is back
}

// Malloc makes a segment, or a part of one for less than a granule, active, on the calling thread, and
// returns its address; 0 for no bytes. Like cudaMalloc it leaves the device's primary context current to
// a thread that had none. Addresses are aligned to 512 bytes.
// Errors: ErrTooLarge, ErrMargin, ErrContext, *cuda.Error. (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) Malloc(r Request) (address uintptr, err error) {
	defer e.audit(&err)
	if r.Size == 0 {
		return 0, nil
	}
	e.mu.Lock()
	d, err := e.device(r.Device)
	e.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if r.Size > d.total {
		return 0, fmt.Errorf("%w: %s of %s on device %d", ErrTooLarge, readable.Bytes(r.Size), readable.Bytes(d.total), r.Device)
	}
	if err := e.admit(d, r.Context); err != nil {
		return 0, err
	}
	err = e.untilFreed(d, r, func() error {
		address, err = e.malloc(d, r)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("allocating %s on device %d: %w%s", readable.Bytes(r.Size), r.Device, err, e.slackNote(d, err))
	}
	return address, nil
}

// untilFreed makes memory, and tries again when it is short and frees that the caller was told of were still
// to be made.
func (e *Engine) untilFreed(d *device, r Request, take func() error) error {
	e.mu.Lock()
	made := d.made
	e.mu.Unlock()
	err := take()
	if r.Capturing || !errors.Is(err, cuda.OutOfMemory) {
		return err
	}
	if e.renew() > 0 {
		err = take()
	}
	for errors.Is(err, cuda.OutOfMemory) && e.awaitFree(d, &made) {
		err = take()
	}
	return err
}

func (e *Engine) malloc(d *device, r Request) (uintptr, error) {
	p := policy{r.Backup, r.Incremental && r.Backup == BackupHost, r.Target, r.Prompt}
	inSlab := r.Size < d.granularity
	granules := uint32((r.Size + d.granularity - 1) / d.granularity)
	e.mu.Lock()
	defer e.mu.Unlock()
	t := d.tag(r.Tag)
	if !e.names[r.Tag] {
		e.names[r.Tag] = true
	}
	if inSlab {
		if address, ok := t.mallocSmall(p, r.Size); ok {
			return address, nil
		}
	}
	s := t.takeSlack(granules)
	if s == nil {
		var err error
		if s, err = e.newSegment(d, t, granules, inSlab); err != nil {
			return 0, err
		}
		x := newExtent(d, s)
		err = e.unlocked(func() error { return e.furnish(x, r) })
		if err != nil && x.created { // nor could it be undone: that is a free to be made later
			s.state, s.extent = freeing, x
			s.span.Enter(s)
			t.add(s)
			e.putOff(&pendingFree{allocation: allocation{segment: s}, why: refused, err: err})
			return 0, err
		}
		if err != nil {
			s.vacate()
			return 0, err
		}
		s.extent = x
	}
	_ = e.grantAll([]*extent{s.extent}) // a device that cannot be told can still not copy it: no worse than before
	s.state, s.size, s.policy, s.slab = active, r.Size, p, nil
	s.span.Enter(s)
	t.add(s)
	if s.incremental {
		e.loadHasher(d)
	}
	if !inSlab {
		return s.address, nil
	}
	s.slab = small.New(d.granularity)
	t.listSlab(s)
	offset, _ := s.slab.Allocate(r.Size)
	return s.address + offset, nil
}

// newSegment finds addresses for a segment of a tag; inSlab: for one that small allocations are to share. The
// caller holds e.mu.
func (e *Engine) newSegment(d *device, t *tag, granules uint32, inSlab bool) (*segment, error) {
	span, err := t.ranges.Allocate(granules, inSlab)
	if err != nil {
		d.retire(t)
		return nil, err
	}
	return &segment{device: d, tag: t, span: span, address: span.Address()}, nil
}

// vacate gives a segment's addresses back.
func (s *segment) vacate() {
	s.span.Release()
	s.device.retire(s.tag)
}

// unlocked lets go of e.mu, which the caller holds, while call is made. A panic in it is an error.
func (e *Engine) unlocked(call func() error) error {
	e.mu.Unlock()
	defer e.mu.Lock()
	return guard.Call(call)
}

// device returns what is known of a device. The caller holds e.mu.
func (e *Engine) device(ordinal int) (*device, error) {
	if d := e.devices[ordinal]; d != nil {
		return d, nil
	}
	d, err := newDevice(e.driver, ordinal)
	if err == nil {
		d.shareable, d.space = e.shareable, e.space
		e.devices[ordinal] = d
	}
	return d, err
}

// furnish makes an extent on the calling thread, or leaves nothing behind, if the driver allows that.
func (e *Engine) furnish(x *extent, r Request) error {
	x.device.refreshUsers()
	return e.withinMargin(x.device, r, func() error {
		err := x.make()
		if err != nil {
			_ = x.unmake() // the cause is what the caller needs
		}
		return err
	})
}

// withinMargin takes memory of a device, whole granules, if that leaves the margin, also while a stream is being
// captured.
func (e *Engine) withinMargin(d *device, r Request, take func() error) error {
	if r.Capturing {
		mode, err := e.driver.ThreadExchangeStreamCaptureMode(cuda.CaptureModeRelaxed)
		if err != nil {
			return err
		}
		defer func() { _, _ = e.driver.ThreadExchangeStreamCaptureMode(mode) }()
	}
	if r.Margin > 0 {
		free, err := d.freeBytes()
		if err != nil {
			return err
		}
		size := (r.Size + d.granularity - 1) / d.granularity * d.granularity
		if free < size || free-size < r.Margin {
			return fmt.Errorf("%w: %s free, margin %s", ErrMargin, readable.Bytes(free), readable.Bytes(r.Margin))
		}
	}
	return take()
}

// BackupPointer returns the address of the host copy of size bytes of device memory, 0 if there is
// none now. Errors: ErrInvalidAddress when the range does not lie in one live segment.
func (e *Engine) BackupPointer(address uintptr, size uint64) (uintptr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.around(address)
	for a.segment != nil && a.segment.busy {
		e.settled.Wait()
		a = e.around(address)
	}
	s := a.segment
	if s == nil {
		return 0, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
	}
	if offset := uint64(address - a.address()); offset > a.size() || size > a.size()-offset {
		return 0, fmt.Errorf("%w: %#x + %d bytes reaches past the end of its segment", ErrInvalidAddress, address, size)
	}
	if s.contents == nil || !s.current || s.contents.Host() == 0 {
		return 0, nil
	}
	return s.contents.Host() + address - s.address, nil
}

// around returns the live allocation that an address lies in, or just behind; none has no segment. The
// caller holds e.mu.
func (e *Engine) around(address uintptr) allocation {
	s := e.segmentAt(address)
	switch {
	case s == nil || s.state == freeing && !s.busy:
		return allocation{}
	case s.slab == nil:
		return allocation{segment: s}
	}
	offset, ok := s.slab.Find(address - s.address)
	if !ok || s.slab.Freeing(offset) {
		return allocation{}
	}
	return allocation{segment: s, small: true, offset: offset}
}

// DeviceOf returns the ordinal of the device that a live segment at, or around, an address is on;
// -1 when there is none.
func (e *Engine) DeviceOf(address uintptr) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.around(address).segment; s != nil {
		return s.device.ordinal
	}
	return -1
}

// OneReservation reports whether two addresses of segments lie in one reservation (cuMemAddressReserve): mappings
// side by side in it are one range to a driver copy.
func (e *Engine) OneReservation(low, high uintptr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.space.OneArena(low, high)
}

// Shareable makes the memory of segments exportable as file descriptors, by cuMemRetainAllocationHandle and
// cuMemExportToShareableHandle. Call it before anything else. Who imported it keeps the memory of before a
// pause, which is then not free until that is let go; the segment itself gets other memory at the resume.
func (e *Engine) Shareable(on bool) { e.shareable = on }

// NotePool tells the statistics that a pool of this library holds so many bytes more, or fewer, of a
// device's memory that it took from CUDA itself.
func (e *Engine) NotePool(ordinal int, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d, err := e.device(ordinal); err == nil {
		d.pools += bytes
	}
}

// Drain waits until what goes on in the background, most of it giving back device and host memory, is over.
func (e *Engine) Drain() {
	e.mu.Lock()
	e.finish(slices.Clone(e.pending))
	for e.loading > 0 {
		e.settled.Wait()
	}
	e.mu.Unlock()
	e.driver.Reclaim.Drain()
}

// known lists the devices.
func (e *Engine) known() []*device {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.devices))
}

// Contexts sets how the engine learns of the contexts that the program makes. Call it before anything else.
func (e *Engine) Contexts(contexts Contexts) { e.contexts = contexts }

// Warn sets what is called with a line for the user's log, rarely. Call it before anything else.
func (e *Engine) Warn(warn func(string)) {
	e.warn = warn
	e.disk.Warn(warn)
	e.peer.Warn(warn)
}
