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
}

// New returns an engine on a driver. announce is called, under a lock, with the address range of
// each new arena; an error from it fails the allocation.
func New(driver *cuda.Driver, announce func(base uintptr, size uint64) error) *Engine {
	e := &Engine{
		driver:   driver,
		host:     backup.NewHost(driver),
		announce: announce,
		devices:  map[int]*device{},
	}
	e.settled.L = &e.mu
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
	if errors.Is(err, cuda.OutOfMemory) && !r.Capturing && e.FreeDeferred() > 0 {
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
	for _, s.arena = range d.arenas {
		if s.span = s.arena.space.allocate(granules); s.span != nil {
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
		a := newArena(base, size, d.granularity)
		d.arenas = append(d.arenas, a)
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

// Free ends a segment, on the calling thread, after the device has finished with it. While a
// stream is being captured nothing may wait, so then the free is made later, by FreeDeferred.
// After any other error the segment is still there, and the free can be tried again.
// Errors: ErrInvalidAddress, *cuda.Error. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Free(address uintptr, capturing bool) error {
	e.mu.Lock()
	s, err := e.claim(address)
	if err == nil && capturing && s.extent.mapped {
		e.deferred = append(e.deferred, s)
		s = nil
	}
	e.mu.Unlock()
	if err != nil || s == nil {
		return err
	}
	return e.free(s, false)
}

// claim marks the segment at an address as being freed, once no pause or resume works on it.
func (e *Engine) claim(address uintptr) (*segment, error) {
	for {
		s := e.find(address)
		if s == nil || s.address != address || !s.busy && s.state == freeing {
			return nil, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
		}
		if !s.busy {
			s.state = freeing
			return s, nil
		}
		e.settled.Wait()
	}
}

func (e *Engine) find(address uintptr) *segment {
	for _, a := range e.arenas {
		if a.contains(address) {
			return a.find(address)
		}
	}
	return nil
}

// free takes a claimed segment apart. A free that the caller was already told has succeeded, late,
// stays deferred when it fails.
func (e *Engine) free(s *segment, late bool) error {
	err := e.dismantle(s)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		s.arena.enter(s.span, nil)
		s.arena.space.release(s.span)
		s.tag.remove(s)
		if s.contents != nil {
			s.contents.Discard()
		}
		return nil
	case late:
		e.deferred = append(e.deferred, s)
	case captureForbids(err):
		// A capture that the seam did not see begin: the free waits for its end all the same.
		e.deferred = append(e.deferred, s)
		return nil
	case s.extent.mapped:
		s.state = active
	default:
		s.state = paused // its memory is out of reach already; what is left goes at the next try
	}
	return fmt.Errorf("freeing %#x: %w", s.address, err)
}

func (e *Engine) dismantle(s *segment) error {
	if s.extent.mapped {
		if err := s.device.synchronize(); err != nil {
			return err
		}
	}
	return s.extent.unmake(s.device)
}

func captureForbids(err error) bool {
	return errors.Is(err, cuda.StreamCaptureUnsupported) || errors.Is(err, cuda.StreamCaptureImplicit)
}

// FreeDeferred makes the frees that a stream capture held up and returns how many succeeded. The
// others stay, for the next time.
func (e *Engine) FreeDeferred() int {
	e.mu.Lock()
	waiting := e.deferred
	e.deferred = nil
	e.mu.Unlock()
	done := 0
	for _, s := range waiting {
		if e.free(s, true) == nil {
			done++
		}
	}
	return done
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
	if s.contents == nil || s.contents.Host() == 0 {
		return 0, nil
	}
	return s.contents.Host() + uintptr(offset), nil
}

// Drain waits until host memory that was discarded has gone back to the operating system.
func (e *Engine) Drain() { e.host.Drain() }
