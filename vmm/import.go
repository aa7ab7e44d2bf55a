package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/clock"
	"tms/vmm/cuda"
)

// imported is of a segment whose memory is another process's. It belongs to the tag that it has there. It has no contents
// of its own to keep: a pause unmaps it and says so to its process, a resume asks for the memory again.
type imported struct {
	engine *Engine
	share  Share
	number uint64          // under which the memory is held there; 0: it is not
	offset uint64          // where in the addresses here that memory begins: before it lies what shared its extent at first
	size   uint64          // bytes of it
	opened map[uintptr]int // addresses that the program was given, and how often
}

// importKey is what can be imported once.
type importKey struct {
	share   Share
	ordinal int
	handle  cuda.Handle // of ImportHandle, of which there may be many; 0: of Import
}

func (i *imported) key(s *segment) importKey {
	key := importKey{share: i.share, ordinal: s.device.ordinal}
	if s.userMapped != nil {
		key.handle = s.userMapped.handle
	}
	return key
}

// fetch has the memory from its process, if it goes where it was in room bytes of addresses. (cuMemImportFromShareableHandle)
func (i *imported) fetch(room uint64) (cuda.Handle, Lent, error) {
	e := i.engine
	e.mu.Lock()
	e.sharing.numbers++
	i.number = e.sharing.numbers
	e.mu.Unlock()
	lent, err := e.sharing.processes.Fetch(i.share, i.number)
	if errors.Is(err, ErrShareGone) || errors.Is(err, ErrSharePaused) {
		i.number = 0
	}
	if err != nil {
		i.giveBack()
		return 0, lent, err
	}
	if i.size == 0 {
		i.offset, i.size, room = lent.Offset, lent.Size, lent.Extent
	}
	var handle cuda.Handle
	if lent.Size == 0 || lent.Size != i.size || lent.Size > lent.Extent || lent.Offset > min(i.offset, lent.Extent-lent.Size) ||
		lent.Extent > room-(i.offset-lent.Offset) {
		err = fmt.Errorf("%d bytes at %d of %d, to be at %d of %d bytes: %w", lent.Size, lent.Offset, lent.Extent, i.offset, room,
			cuda.InvalidValue)
	} else {
		handle, err = e.driver.MemImport(lent.Descriptor)
	}
	_ = unix.Close(lent.Descriptor)
	if err != nil {
		i.giveBack()
		return 0, lent, fmt.Errorf("memory of process %d on device %s: %w", i.share.PID, lent.Device, err)
	}
	return handle, lent, nil
}

// giveBack has the process told that the memory is not mapped any more; again later, where it does not hear. It waits for
// nothing, and of memory that is not imported does nothing.
func (i *imported) giveBack() {
	if i == nil || i.number == 0 {
		return
	}
	e, share, number := i.engine, i.share, i.number
	i.number = 0
	e.driver.Reclaim.Kind("notice to another process").Add(0, func() error { return e.sharing.processes.Return(share, number) })
}

// Import maps another process's segment for a device, and returns the address of offset in it: the same as before, if
// it is open already. Errors: ErrShareGone, ErrSharePaused, *cuda.Error.
// (cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess)
func (e *Engine) Import(ordinal int, share Share, offset uint64) (address uintptr, err error) {
	defer e.audit(&err)
	e.sharing.opening.Lock()
	defer e.sharing.opening.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sharing.imports[importKey{share: share, ordinal: ordinal}]; s != nil && s.owner != aFree {
		address = s.address + uintptr(s.imported.offset+offset)
		s.imported.opened[address]++
		return address, nil
	}
	d, err := e.device(ordinal)
	if err != nil {
		return 0, err
	}
	i := &imported{engine: e, share: share, opened: map[uintptr]int{}}
	var handle cuda.Handle
	var lent Lent
	if err := e.unlocked(func() (err error) { handle, lent, err = i.fetch(0); return err }); err != nil {
		return 0, err
	}
	drop := func() { (&extent{device: d, imported: i, handle: handle, step: created}).drop() }
	if lent.Extent%d.granularity != 0 || offset >= lent.Size {
		_ = e.unlocked(func() error { drop(); return nil })
		return 0, fmt.Errorf("%d of %d bytes of process %d: %w", offset, lent.Extent, share.PID, cuda.InvalidValue)
	}
	t := d.tag(lent.Tag)
	e.names[lent.Tag] = true
	s, err := e.newSegment(d, t, uint32(lent.Extent/d.granularity), false, nil)
	if err != nil {
		_ = e.unlocked(func() error { drop(); return nil })
		return 0, err
	}
	s.size, s.imported = lent.Extent, i
	x := newExtent(s)
	x.handle, x.step = handle, created
	if err := e.unlocked(x.attach); err != nil {
		_ = e.unlocked(x.unmake)
		if x.step > none { // a free to be made later, as in malloc
			s.state, s.owner, s.extent = paused, aFree, x
			s.span.Enter(s)
			t.add(s)
			e.putOff(pendingFree{allocation: allocation{segment: s}, stage: refused, why: refusedPrefix + err.Error()})
		} else {
			s.vacate()
		}
		return 0, fmt.Errorf("device %d cannot use memory of process %d on device %s: %w", ordinal, share.PID, lent.Device, err)
	}
	s.extent = x
	s.span.Enter(s)
	t.add(s)
	e.sharing.imports[i.key(s)] = s
	address = s.address + uintptr(i.offset+offset)
	i.opened[address] = 1
	return address, nil
}

// Close ends one Import of an address. After the last of its segment that is unmapped, when the devices have finished with
// it; while a stream is being captured that is done later. Errors: ErrInvalidAddress, *cuda.Error; the import is then still
// there. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Close(address uintptr, capturing bool) (err error) {
	defer e.audit(&err)
	last := func() (s *segment, last bool, err error) {
		s = e.segmentAt(address)
		if s == nil || s.imported == nil || s.owner == aFree || s.imported.opened[address] == 0 {
			return nil, false, fmt.Errorf("%#x was not opened: %w", address, ErrInvalidAddress)
		}
		return s, len(s.imported.opened) == 1 && s.imported.opened[address] == 1, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ends, err := last()
	if err == nil && ends && !capturing {
		err = e.unlocked(func() error { return e.Quiesce(address) })
		capturing = errors.Is(err, ErrCapturing)
	}
	if err != nil && !capturing {
		return err
	}
	for {
		s, ends, err := last() // once more: it may be open again
		switch {
		case err != nil:
			return err
		case ends && s.owner == aTransition:
			e.settled.Wait()
			continue
		case !ends:
			if s.imported.opened[address]--; s.imported.opened[address] == 0 {
				delete(s.imported.opened, address)
			}
			return nil
		}
		s.owner = aFree
		if capturing && s.mapped() {
			e.putOff(pendingFree{allocation: allocation{segment: s}, stage: unwaited, why: captured})
			return nil
		}
		return e.free(allocation{segment: s})
	}
}

// ImportedBytes is how much memory of other processes is mapped.
func (e *Engine) ImportedBytes() (bytes uint64) {
	for _, segments := range e.choose(nil, func(s *segment) bool { return s.imported != nil && s.is(active) }) {
		for _, s := range segments {
			bytes += s.imported.size
		}
	}
	return bytes
}

// pauseImports unmaps what is imported under a tag, and waits for no other process. It returns which segments those are,
// also after an error: those are unmapped then, or still held.
func (e *Engine) pauseImports(o Options) (unmapped map[*segment]bool, err error) {
	wanted := func(s *segment) bool {
		return s.imported != nil && (s.is(active) || s.is(paused) && s.extent != nil)
	}
	start := time.Now()
	var devices []*device
	for d := range e.choose(o.Tag, wanted) {
		devices = append(devices, d)
	}
	if len(devices) == 0 {
		return nil, nil
	}
	if err := e.freeQuiesced(devices, func() error { return e.quiesce(devices...) }); err != nil {
		return nil, err
	}
	e.transition.Lock()
	defer e.transition.Unlock()
	batches := e.begin(o.Tag, func(s *segment) bool {
		return slices.Contains(devices, s.device) && wanted(s)
	})
	o.spent.waitedSince(start)
	unmapped = map[*segment]bool{}
	err = e.transit(batches, func() (first error) {
		if err := unmap(batches, o.Gated); err != nil {
			return err
		}
		for _, b := range batches {
			for _, s := range b.segments {
				s.comesToPaused(o.Gated)
				unmapped[s] = true
			}
			for _, x := range b.extents {
				if err := x.release(); err != nil && first == nil {
					first = err
				}
			}
		}
		return first
	}, func(t *tag) { t.pausedSince = float64(time.Now().UnixMilli()) / 1000 })
	return unmapped, err
}

// resumeImports maps again what is imported under a tag and meant, at the addresses that it had. Where the process that has
// the memory has not resumed it yet, that is waited for, with nothing claimed or locked.
// Errors: ErrShareGone, ErrSharePaused, *cuda.Error; the rest is mapped all the same.
func (e *Engine) resumeImports(o Options, wait time.Duration, meant func(*segment) bool) error {
	start := time.Now()
	defer func() { o.spent.waitedSince(start) }()
	for pause := firstLook; ; pause = min(2*pause, lastImportLook) {
		last := time.Since(start) >= wait
		waits, err := e.tryResumeImports(o, meant, last)
		if !waits || last {
			return err
		}
		clock.Sleep(pause)
	}
}

// tryResumeImports tells whether some of it is still paused where it is; that is asked for once by process and tag, but in
// the last try.
func (e *Engine) tryResumeImports(o Options, meant func(*segment) bool, last bool) (waits bool, first error) {
	e.mu.Lock()
	none := len(e.sharing.imports) == 0
	e.mu.Unlock()
	if none {
		return false, nil
	}
	e.transition.Lock()
	defer e.transition.Unlock()
	batches := e.begin(o.Tag, func(s *segment) bool { return s.imported != nil && s.is(paused) && meant(s) })
	type share struct {
		pid int
		tag *tag
	}
	silent, waiting := map[int]error{}, map[share]error{} // processes that do not answer; tags that they have not resumed
	_ = e.transit(batches, func() error {
		for _, b := range batches {
			e.mu.Lock()
			b.gather(0)
			e.mu.Unlock()
			for n, x := range b.extents {
				s := b.segments[n]
				pid := s.imported.share.PID
				of := share{pid, s.tag}
				err := cmp.Or(silent[pid], waiting[of])
				if err == nil {
					err = x.make()
				}
				if err == nil {
					s.outcome.state, s.outcome.gated = active, false
					continue
				}
				_ = x.undo()
				if errors.Is(err, ErrSilent) {
					silent[pid] = err
				}
				if errors.Is(err, ErrSharePaused) {
					if waits = true; !last {
						waiting[of] = err
					}
				}
				if first == nil || !goneFor(first) && goneFor(err) {
					first = fmt.Errorf("memory of process %d at %#x: %w", s.imported.share.PID, s.address, err)
					if goneFor(err) {
						first = fmt.Errorf("%w; close it (%s)", first, s.closedBy())
					}
				}
			}
		}
		return nil
	}, func(*tag) {})
	return waits, first
}

// closedBy names the calls by which a program ends an import.
func (s *segment) closedBy() string {
	if s.userMapped != nil {
		return "cuMemUnmap, cuMemRelease"
	}
	return "cudaIpcCloseMemHandle"
}
