// Package vmm is the engine: it makes device memory whose physical part can be taken away and
// brought back under the same addresses.
//
// A segment (one cudaMalloc) lives at a place in an arena (one large address reservation of its
// device) and is backed by an extent (one physical handle). Segments with one tag are paused and
// resumed together, as a transaction.
package vmm

import (
	"errors"
	"fmt"
	"sync"

	"tms/vmm/backup"
	"tms/vmm/cuda"
)

// Engine is safe for use by many threads.
type Engine struct {
	driver *cuda.Driver
	host   *backup.Host
	disk   *backup.Disk
	// announce is told of each arena before any address in it is handed out.
	announce func(base uintptr, size uint64) error

	// transition is held through a pause or resume: they run one at a time.
	transition sync.Mutex

	// mu guards everything below. It is never held over a driver call, but for the first
	// allocation of a device and the reservation of an arena.
	mu       sync.Mutex
	settled  sync.Cond // a pause or resume has ended
	devices  map[int]*device
	arenas   []*arena
	deferred []*segment // frees that wait for the end of a stream capture
	ordered  []orderedFree
	made     uint64 // ordered frees so far
	reaping  bool
	reaped   sync.Cond // an ordered free is done
}

// New returns an engine on a driver. announce is called, under a lock, with the address range of
// each new arena; an error from it fails the allocation.
func New(driver *cuda.Driver, announce func(base uintptr, size uint64) error) *Engine {
	e := &Engine{
		driver:   driver,
		host:     backup.NewHost(driver),
		disk:     backup.NewDisk(driver),
		announce: announce,
		devices:  map[int]*device{},
	}
	e.settled.L = &e.mu
	e.reaped.L = &e.mu
	return e
}

// Request is an allocation to make.
type Request struct {
	Size      uint64 // bytes
	Device    int    // CUDA ordinal
	Tag       string
	Backup    BackupKind
	Margin    uint64 // bytes of device memory that must stay free; 0: no margin
	Capturing bool   // a stream of the process is being captured
}

// Malloc makes a segment, active, on the calling thread, and returns its address; 0 for no bytes.
// Like cudaMalloc it leaves the device's primary context current to a thread that had none.
// Errors: ErrTooLarge, ErrMargin, *cuda.Error. (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) Malloc(r Request) (uintptr, error) {
	if r.Size == 0 {
		return 0, nil
	}
	s, err := e.place(r)
	if err != nil {
		return 0, err
	}
	err = e.furnish(s, r)
	if errors.Is(err, cuda.OutOfMemory) && !r.Capturing && e.FreeDeferred()+e.waitOrdered() > 0 {
		err = e.furnish(s, r)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		s.arena.space.release(s.span)
		return 0, fmt.Errorf("allocating %d bytes on device %d: %w", r.Size, r.Device, err)
	}
	s.arena.enter(s.span, s)
	s.device.tag(r.Tag).add(s)
	return s.address, nil
}

// place finds a segment its addresses.
func (e *Engine) place(r Request) (*segment, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.devices[r.Device]
	if d == nil {
		var err error
		if d, err = newDevice(e.driver, r.Device); err != nil {
			return nil, err
		}
		e.devices[r.Device] = d
	}
	if r.Size > d.total {
		return nil, fmt.Errorf("%w: %d of %d bytes on device %d", ErrTooLarge, r.Size, d.total, r.Device)
	}
	granules := uint32((r.Size + d.granularity - 1) / d.granularity)
	s := &segment{device: d, size: r.Size, backup: r.Backup}
	for _, a := range e.arenas {
		if a.ordinal != d.ordinal {
			continue
		}
		if s.span = a.space.allocate(granules); s.span != nil {
			s.arena = a
			break
		}
	}
	if s.span == nil {
		var err error
		if s.arena, err = e.reserve(d, r.Size); err != nil {
			return nil, err
		}
		s.span = s.arena.space.allocate(granules)
	}
	s.address = s.arena.address(s.span)
	s.extent = extent{address: s.address, size: uint64(granules) * d.granularity}
	return s, nil
}

// reserve adds an arena to a device. Where addresses are short (ulimit -v) it asks for less, down
// to what one segment needs.
func (e *Engine) reserve(d *device, need uint64) (*arena, error) {
	for size := uint64(arenaSize); ; size /= 2 {
		base, err := e.driver.MemAddressReserve(size, d.granularity)
		if err != nil {
			if size/2 < need+d.granularity {
				return nil, err
			}
			continue
		}
		if err := e.announce(base, size); err != nil {
			_ = e.driver.MemAddressFree(base, size)
			return nil, err
		}
		a := newArena(base, size, d.granularity, d.ordinal)
		e.arenas = append(e.arenas, a)
		return a, nil
	}
}

// furnish gives a placed segment its memory, or leaves nothing behind.
func (e *Engine) furnish(s *segment, r Request) error {
	d := s.device
	if err := d.adopt(); err != nil {
		return err
	}
	if r.Capturing {
		mode, err := e.driver.ThreadExchangeStreamCaptureMode(cuda.CaptureModeRelaxed)
		if err != nil {
			return err
		}
		defer func() { _, _ = e.driver.ThreadExchangeStreamCaptureMode(mode) }()
	}
	if r.Margin > 0 {
		free, err := d.free()
		if err != nil {
			return err
		}
		if free < s.extent.size || free-s.extent.size < r.Margin {
			return fmt.Errorf("%w: %d bytes free, margin %d", ErrMargin, free, r.Margin)
		}
	}
	err := s.extent.make(d)
	if err != nil {
		_ = s.extent.unmake(d) // the cause is what the caller needs
	}
	return err
}

// BackupPointer returns the address of the host copy of size bytes of device memory, 0 if there is
// none now. Errors: ErrInvalidAddress when the range does not lie in one live segment.
func (e *Engine) BackupPointer(address uintptr, size uint64) (uintptr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.find(address)
	for s != nil && s.busy {
		e.settled.Wait()
		s = e.find(address)
	}
	if s == nil || s.state == freeing {
		return 0, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
	}
	offset := uint64(address - s.address)
	if offset > s.size || size > s.size-offset {
		return 0, fmt.Errorf("%w: %#x + %d bytes reaches past the end of its segment", ErrInvalidAddress, address, size)
	}
	if s.contents == nil || !s.current || s.contents.Host() == 0 {
		return 0, nil
	}
	return s.contents.Host() + uintptr(offset), nil
}

// DeviceOf returns the ordinal of the device that a live segment at, or around, an address is on;
// -1 when there is none.
func (e *Engine) DeviceOf(address uintptr) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.find(address); s != nil && (s.busy || s.state != freeing) {
		return s.device.ordinal
	}
	return -1
}

// Drain waits until what is given back in the background, device and host memory, has gone.
func (e *Engine) Drain() {
	e.waitOrdered()
	e.host.Drain()
	e.disk.Drain()
}

// Warn sets what is called with a line for the user's log, rarely.
func (e *Engine) Warn(warn func(string)) { e.disk.Warn(warn) }
