package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/mapping"
)

// imported is another process's memory that is mapped here. It belongs to the tag that it has there. It has no
// contents to keep: a pause unmaps it and tells its process, a resume asks for it again.
type imported struct {
	engine *Engine
	share  Share
	number uint64          // by which its process knows that it is held here, else 0
	offset uint64          // where it begins in the segment's addresses, behind what shared its extent at first
	size   uint64          // in bytes
	opened map[uintptr]int // addresses that the program got, and how often
	// readOnly is for memory of the keeper that is complete.
	readOnly bool
	exported bool // by the program, as what the driver makes of it
	lost     bool // its process has ended, or freed it while it was paused here
}

// borrowed is a handle to another process's memory.
type borrowed struct {
	handle cuda.Handle
	export Export
	number uint64 // by which its process knows
}

// fetch asks the process for its memory, which must fit at its old place in room bytes of addresses; with room 0 it may
// go anywhere. fetch changes nothing here: it waits for another process, with nothing claimed or locked.
// (cuMemImportFromShareableHandle)
func (i *imported) fetch(room uint64) (b borrowed, err error) {
	number := max(1, rand.Uint64())
	export, err := i.engine.process.Fetch(i.share, number)
	if err != nil {
		if !errors.Is(err, ErrShareGone) && !errors.Is(err, ErrSharePaused) {
			i.tell(number)
		}
		return b, err
	}
	offset, size := i.offset, i.size
	if room == 0 {
		offset, size, room = export.Offset, export.Size, export.Extent
	}
	var handle cuda.Handle
	if export.Size == 0 || export.Size != size || export.Size > export.Extent ||
		export.Offset > min(offset, export.Extent-export.Size) || export.Extent > room-(offset-export.Offset) {
		err = fmt.Errorf("the memory that came does not fit: %d bytes at %d of %d, to be at %d of %d bytes%.0w",
			export.Size, export.Offset, export.Extent, offset, room, cuda.InvalidValue)
	} else {
		handle, err = i.engine.driver.MemImport(export.Descriptor)
	}
	i.engine.process.Descriptors().Close(export.Descriptor)
	if err != nil {
		i.tell(number)
		return b, fmt.Errorf("memory of %v on device %s: %w", i.share, export.Device, err)
	}
	return borrowed{handle, export, number}, nil
}

// open is fetch for memory that the engine does not know yet. The caller holds e.mu, which is released for the request.
func (i *imported) open() (b borrowed, err error) {
	err = i.engine.unlocked(func() (err error) { b, err = i.fetch(0); return err })
	if err == nil {
		i.number, i.offset, i.size = b.number, b.export.Offset, b.export.Size
	}
	return b, err
}

// tell notifies the process that nothing is held under a number, and tries again soon where that fails.
func (i *imported) tell(number uint64) {
	e, share := i.engine, i.share
	notices := e.driver.Reclaim.Kind("notice to another process")
	notices.Add(0, func() error {
		err := e.process.Return(share, number)
		if err == nil {
			e.sharing.noticeWait.Store(int64(noticeAgain))
		} else if wait := e.sharing.noticeWait.Load(); e.sharing.noticing.CompareAndSwap(false, true) {
			// One timer for all, however many are refused: a stopped process may take none for long.
			e.sharing.noticeWait.Store(min(2*max(wait, int64(noticeAgain)), int64(noticeLast)))
			time.AfterFunc(time.Duration(max(wait, int64(noticeAgain))), func() {
				e.sharing.noticing.Store(false)
				notices.Retry()
			})
		}
		return err
	})
}

// A refused notice is tried again after the first time, then after twice as long, up to the last.
const (
	noticeAgain = 100 * time.Millisecond
	noticeLast  = time.Second
)

// end gives back memory that is mapped nowhere.
func (i *imported) end(d *device, b borrowed) {
	i.number = b.number
	x := newMemory(d, backing{imported: i})
	x.Handle, x.Step = b.handle, mapping.Created
	x.Drop()
}

// Import maps another process's segment for a device, and returns the address of offset in it, which is the same each
// time while it stays open. Errors: ErrShareGone, ErrSharePaused, *cuda.Error. (cuMemImportFromShareableHandle,
// cuMemMap, cuMemSetAccess)
func (h Shared) Import(ordinal int, share Share, offset uint64) (address uintptr, err error) {
	e := h.engine
	return e.importAs(ordinal, share, offset, "", false)
}

// importAs is Import under a tag, or with "" under the tag that the memory has in its own process.
func (e *Engine) importAs(ordinal int, share Share, offset uint64, tag string, readOnly bool) (address uintptr,
	err error) {
	defer e.audit(&err)
	key := importKey{share: share, ordinal: ordinal}
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.sharing.opening[key] {
		e.settled.Wait()
	}
	if s := e.sharing.imports[key]; s != nil && s.owner != aFree {
		if err := s.lost(); err != nil {
			return 0, err
		}
		address = s.address + uintptr(s.imported.offset+offset)
		s.imported.opened[address]++
		return address, nil
	}
	d, err := e.device(ordinal)
	if err != nil {
		return 0, err
	}
	e.sharing.opening[key] = true
	defer func() {
		delete(e.sharing.opening, key)
		e.settled.Broadcast()
	}()
	i := &imported{engine: e, share: share, opened: map[uintptr]int{}, readOnly: readOnly}
	b, err := i.open()
	if err != nil {
		return 0, err
	}
	export := b.export
	drop := func() error { i.end(d, b); return nil }
	if export.Extent%d.granularity != 0 || offset >= export.Size {
		_ = e.unlocked(drop)
		return 0, fmt.Errorf("%d of %d bytes of %v: %w", offset, export.Extent, share, cuda.InvalidValue)
	}
	tag = cmp.Or(tag, export.Tag)
	t := d.tag(tag)
	e.names.Note(tag)
	s, err := e.newSegment(d, t, uint32(export.Extent/d.granularity), false, nil)
	if err != nil {
		_ = e.unlocked(drop)
		return 0, err
	}
	s.size, s.imported = export.Extent, i
	x := newExtent(s)
	x.Handle, x.Step = b.handle, mapping.Created
	if err := e.unlocked(x.Attach); err != nil {
		_ = e.unlocked(x.Unmake)
		e.abandon(s, x, err)
		return 0, fmt.Errorf("device %d cannot use memory of %v on device %s: %w", ordinal, share,
			export.Device, err)
	}
	s.extent = x
	if err := e.enter(s); err != nil {
		return 0, fmt.Errorf("memory of %v: %w", share, err)
	}
	e.sharing.imports[i.key(s)] = s
	address = s.address + uintptr(i.offset+offset)
	i.opened[address] = 1
	return address, nil
}

// Close ends one Import of an address. The last Close of a segment unmaps it when the devices have finished with it;
// during a capture that is done later. Errors: ErrInvalidAddress, *cuda.Error; the import is then still there.
// (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (h Shared) Close(address uintptr, capturing bool) (err error) {
	e := h.engine
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

// resumeImports maps other processes' memory again, at the addresses that it had. It waits for a process that has not
// resumed the memory yet, or does not answer, with nothing claimed or locked. Each process has a thread here, so a
// stopped process delays only its own memory. Errors: ErrShareGone, ErrSharePaused, *cuda.Error. The rest is mapped.
func (e *Engine) resumeImports(o *operation, wait time.Duration, cancel <-chan struct{},
	segments []*segment) (first error) {
	start := time.Now()
	defer func() { o.spent.waited += time.Since(start) }()
	of := map[Share][]*segment{} // by process: a Share without its ID
	e.mu.Lock()
	for _, s := range segments {
		process := Share{PID: s.imported.share.PID, Start: s.imported.share.Start}
		of[process] = append(of[process], s)
	}
	e.mu.Unlock()
	errs := make(chan error)
	for _, segments := range of {
		go func() {
			errs <- guard.Call(func() error { return e.resumeImportsOf(o.Tags, start.Add(wait), cancel, segments) })
		}()
	}
	for range of {
		if err := <-errs; first == nil || !errors.Is(first, ErrShareGone) && errors.Is(err, ErrShareGone) {
			first = err
		}
	}
	return first
}

// resumeImportsOf is resumeImports for one process's memory.
func (e *Engine) resumeImportsOf(tags []string, until time.Time, cancel <-chan struct{}, segments []*segment) error {
	var gone error // of one try
	wait := backoff.Backoff{Next: firstLook, Most: 8 * time.Millisecond}
	for last := !time.Now().Before(until); ; last = !wait.SleepUnless(until, cancel) || !time.Now().Before(until) {
		waits, err := e.tryResumeImports(tags, segments, last)
		if errors.Is(err, ErrShareGone) {
			gone = cmp.Or(gone, err)
		}
		if !waits || last {
			return cmp.Or(gone, err)
		}
	}
}

// fetched is the result of asking for memory.
type fetched struct {
	borrowed
	of   *imported
	room uint64 // for it
	err  error
}

// fetchImports asks a process for its segments that are paused here, with nothing claimed or locked. It also asks for
// segments that an error left held, because another pause may release these at any moment. If a tag is still paused
// there, it asks for one segment of the tag, and only in the last try for all.
func (e *Engine) fetchImports(segments []*segment, last bool) map[*segment]*fetched {
	got := map[*segment]*fetched{}
	var asked []*segment
	e.mu.Lock()
	for _, s := range segments {
		if !s.is(paused) || s.imported.lost {
			continue
		}
		got[s] = &fetched{of: s.imported, room: s.length()}
		if s.userMapped != nil {
			got[s].room = s.userMapped.size
		}
		asked = append(asked, s)
	}
	e.mu.Unlock()
	var silent error
	waiting := map[*tag]error{}
	for _, s := range asked {
		f := got[s]
		if f.err = cmp.Or(silent, waiting[s.tag]); f.err != nil {
			continue
		}
		f.err = guard.Call(func() (err error) { f.borrowed, err = f.of.fetch(f.room); return err })
		switch {
		case errors.Is(f.err, ErrSilent):
			silent = f.err
		case errors.Is(f.err, ErrSharePaused) && !last:
			waiting[s.tag] = f.err
		}
	}
	return got
}

// tryResumeImports reports whether another try may map more. Memory that is gone counts as lost, and no longer as
// paused.
func (e *Engine) tryResumeImports(tags []string, segments []*segment, last bool) (waits bool, first error) {
	got := e.fetchImports(segments, last)
	if len(got) == 0 {
		return false, nil
	}
	var lines []string
	var moved bool // a remap has put other memory in the place of what was asked for
	o := &operation{Options: Options{Tags: tags}}
	wanted := func(s *segment) bool {
		if got[s] == nil || !s.is(paused) || s.imported.lost {
			return false
		}
		moved = moved || s.imported != got[s].of
		return s.imported == got[s].of
	}
	_ = e.transact("resume", o, wanted, func(batches []*batch) error {
		e.gather(batches, 0, nil)
		for _, b := range batches {
			for n, x := range b.extents {
				s := b.segments[n]
				f := got[s]
				err := f.err
				if x.Step > mapping.None { // it is held
					err = nil
				}
				if err == nil {
					x.borrow(&f.borrowed)
					err = x.Attach()
				}
				if err == nil {
					s.outcome.state = active
					continue
				}
				_ = x.Undo(x.segments[0].extent == x)
				waits = waits || errors.Is(err, ErrSharePaused) || errors.Is(err, ErrSilent)
				err = fmt.Errorf("memory of %v at %#x: %w", s.imported.share, s.address, err)
				if errors.Is(err, ErrShareGone) {
					err = fmt.Errorf("%w; close it (%s)", err, s.closedBy())
					lines = append(lines, err.Error())
					s.outcome.lost = true
				}
				if first == nil || !errors.Is(first, ErrShareGone) && errors.Is(err, ErrShareGone) {
					first = err
				}
			}
		}
		return nil
	}, func(*tag) {})
	for _, line := range lines {
		e.process.Warn(line)
	}
	for s, f := range got { // no longer needed: its segment was closed, or another has resumed it
		if f.handle != 0 {
			(&imported{engine: e, share: f.of.share}).end(s.device, f.borrowed)
		}
	}
	if moved {
		again, err := e.tryResumeImports(tags, segments, last)
		return waits || again, cmp.Or(first, err)
	}
	return waits, first
}

// borrow gives fetched memory to an extent that has none.
func (x *extent) borrow(b *borrowed) {
	if x.Step > mapping.None || b.handle == 0 {
		return
	}
	x.Handle, x.Step, x.imported.number = b.handle, mapping.Created, b.number
	if x.userMapped == nil { // without the neighbours that it had, perhaps
		x.Address, x.Size = x.segments[0].address+uintptr(x.imported.offset-b.export.Offset), b.export.Extent
	}
	b.handle = 0
}

// closedBy names the calls by which a program ends an import.
func (b backing) closedBy() string {
	switch {
	case b.userMapped != nil:
		return "cuMemUnmap, cuMemRelease"
	case b.imported.share.PID == Keeper:
		return "tms_kept_close"
	}
	return "cudaIpcCloseMemHandle"
}

// lost returns the error for imported memory that will not come back.
func (s *segment) lost() error {
	if s.imported == nil || !s.imported.lost {
		return nil
	}
	return fmt.Errorf("the memory at %#x was %v's and is lost; close it (%s): %w", s.address,
		s.imported.share, s.closedBy(), ErrShareGone)
}
