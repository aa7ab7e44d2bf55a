package vmm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/stats"
	"tms/vmm/store"
)

// Pause releases the physical memory of every active segment with the tags, on all devices, after
// saving the contents of those that have a backup (unless Options.Discard), and returns how many bytes that was.
// When it returns, the memory is free for others; the system has the host memory of discarded contents back, unless
// that takes long: see discarded.
//
// It is a transaction: wait for the devices; save contents; unmap all; release all. An error in one of the first three
// steps leaves every segment active. An error in the last leaves them paused; memory that the driver did not release is
// still held, and another Pause releases it.
//
// Where processes share memory there are two such transactions. The first unmaps other processes' memory, and waits for
// no other process. The second takes this process's own memory, once no other process has it mapped. Every pausing
// process does so, so two processes that have each other's memory mapped may pause in any order. If the second fails,
// the first is undone, as far as the other processes let it. Errors: ErrCapturing, ErrImported, store.ErrHostMemory,
// *cuda.Error. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Pause(options Options) (freed uint64, err error) {
	defer e.audit(&err)
	o := e.begun("pause", options)
	defer e.over(o, &freed, &err)
	defer e.ForgetLive(o.Tags)
	if o.Capturing {
		return 0, fmt.Errorf("pause: %w", ErrCapturing)
	}
	open := e.closeShares(o)
	defer open()

	// The first transaction takes other processes' memory. The second takes this process's own, once no other has it
	// mapped.
	_, theirs, err := e.pausePart(o, true)
	if err == nil {
		err = e.awaitImporters(o)
	}

	// An earlier transaction that failed may have left segments paused whose memory alone has their contents. Where
	// this pause saves contents it makes such segments active again, so that it saves these like all others.
	if err == nil {
		saves := func(s *segment) bool { return s.held && o.backupOf(s) != BackupNone }
		err = e.transact("resume", o, func(s *segment) bool {
			return s.is(paused) && s.extent != nil && slices.ContainsFunc(s.extent.segments, saves)
		}, func(batches []*batch) error {
			e.gather(batches, 0)
			return e.resume(batches, o)
		}, func(*tag) {})
	}
	var own []*segment
	if err == nil {
		freed, own, err = e.pausePart(o, false)
	}

	// A pause that has taken none of its own memory maps the other processes' again.
	if err != nil && len(own) == 0 {
		open()
		wait := soon // the others have paused, and do not come back because of this pause
		if errors.Is(err, ErrImported) {
			wait = o.Importers // the others are refused for the same reason, if later
		}
		if failed := e.resumeImports(o, wait, nil, theirs); failed != nil {
			err = fmt.Errorf("%w; and memory of other processes is not mapped again, resume it: %v", err, failed)
		}
	}
	if err != nil {
		return freed, fmt.Errorf("pause: %w", err)
	}
	o.discarded.await(&o.spent)
	return freed, nil
}

// soon is how long a pause that has failed waits for other processes' memory.
const soon = 100 * time.Millisecond

// pausePart is one of the transactions of a pause: of other processes' memory, or of this one's own. It returns how
// many bytes that freed, and which segments lost their memory, even after an error.
func (e *Engine) pausePart(o *operation, theirs bool) (freed uint64, taken []*segment, err error) {
	start := time.Now()
	wanted := func(s *segment) bool {
		return s.isImported() == theirs && (s.pausable() || s.is(paused) && s.extent != nil) && s.changedAfter(o.Since)
	}

	// The devices finish the work that was submitted before the call. Another thread of the host may be needed for
	// that, so this thread holds no lock. A kernel launched during a pause must not use the tag's memory. Memory that
	// was freed before the call must be free too when Pause returns.
	going := map[*device]bool{}
	e.mu.Lock()
	e.visit(o.Tags, func(d *device, s *segment) int {
		if !going[d] && (wanted(s) || s.isImported() == theirs && s.owner == aFree) {
			going[d] = true
		}
		return 1
	})
	e.mu.Unlock()
	devices := slices.Collect(maps.Keys(going))
	if theirs && len(devices) == 0 {
		return 0, nil, nil
	}
	deferred := !theirs // other processes wait while this one unmaps theirs
	if err := e.freeQuiesced(devices, deferred, func() error { return e.quiesce(devices...) }); err != nil {
		return 0, nil, err
	}
	o.spent.waited += time.Since(start)

	of := func(s *segment) bool { return wanted(s) && slices.Contains(devices, s.device) }
	err = e.transact("pause", o, of, func(batches []*batch) error {
		// First the contents are saved. An error here, or in the next step, leaves the segments active.
		err := e.saveAll(batches, o)

		// Then all extents are unmapped. After an error, those that the driver does not map again keep their memory,
		// and their segments are paused, so nothing is lost.
		if err == nil {
			var extents, stuck []*extent
			for _, b := range batches {
				extents = append(extents, b.extents...)
			}
			stuck, err = detachAll(extents)
			for _, x := range stuck {
				for _, s := range x.segments {
					if s.outcome.state = paused; s.state == active && o.backupOf(s) == BackupNone {
						s.pauseHeld()
					}
				}
			}
		}

		// After an error what was saved is discarded. Contents that were kept before stay, though the pause may have
		// overwritten parts of them, and so do the contents of a segment that is paused after all.
		unmapped := batches
		if err != nil {
			unmapped = nil
			for _, b := range batches {
				for _, s := range b.segments {
					switch replaced := s.outcome.contents != s.contents; {
					case s.outcome.state == active:
						if replaced {
							s.outcome.contents.Discard()
						}
						s.outcome.saved = s.saved
						s.outcome.current, s.outcome.sums = false, nil
					case replaced && s.contents != nil:
						s.contents.Discard()
					}
				}
			}
		}

		// The memory is given back. The segments are paused, even if the driver refuses to release an extent.
		for _, b := range unmapped {
			for _, s := range b.segments {
				if s.outcome.state = paused; s.state == paused {
					s.outcome.held = false
					continue
				}
				taken = append(taken, s)
				if o.discards(s) {
					s.outcome.saved = saved{}
				}
				if s.contents != nil && s.outcome.contents != s.contents {
					o.discarded.add(s.contents, s.prompt)
					s.contents.Discard()
				}
			}
			for _, x := range b.extents {
				if failed := x.release(); failed == nil {
					freed += x.size
					b.moved += x.size
				} else if err == nil {
					err = fmt.Errorf("paused, but memory is still held; pause again to release it: %w", failed)
				}
			}
		}
		if !theirs {
			e.count(batches, start, err, func(t *totals) *stats.Total { return &t.pauses })
		}
		return err
	}, func(t *tag) {
		t.lastPause, t.pausedSince = time.Since(start).Seconds(), float64(time.Now().UnixMilli())/1000
	})
	return freed, taken, err
}

// saveAll copies the contents of the active segments that have a backup. Where there is no directory for files, or too
// little host memory, it refuses before anything is copied.
func (e *Engine) saveAll(batches []*batch, o *operation) error {
	toDisk := func(s *segment) bool { return s.state == active && o.backupOf(s) == BackupDisk }
	for _, b := range batches {
		if slices.ContainsFunc(b.segments, toDisk) {
			if b.device.keptOff.Load() {
				e.toldOfHost.Do(func() {
					e.process.Warn(fmt.Sprintf("device %d has no memory of its own: contents in host memory would free "+
						"nothing, so a pause saves them to files (TMS_DISK_BACKUP_DIR)", b.device.ordinal))
				})
			}
			if err := e.disk.Configure(o.DiskDir, o.DiskSetting); err != nil {
				return err
			}
		}
	}
	start := time.Now()
	if err := guard.All(batches, func(b *batch) error { return e.plan(b, o) }); err != nil {
		return err
	}
	var items []store.Item
	for _, b := range batches {
		items = append(items, slices.Concat(b.items[BackupHost], b.items[backupMemory])...)
	}
	if err := e.host.Check(batches[0].job.Budget, items); err != nil {
		return err
	}
	stores := map[BackupKind]store.Store{BackupHost: e.host, BackupDisk: e.disk, BackupPeer: e.peer,
		backupMemory: e.memory}
	return guard.All(batches, func(b *batch) error {
		defer func() { b.copying = time.Since(start) }()
		for kind, segments := range b.saving {
			copies, err := stores[kind].Save(b.job, b.items[kind])
			if err != nil {
				return err
			}
			for i, s := range segments {
				s.outcome.contents = copies[i]
			}
		}
		return nil
	})
}

// discards reports whether a pause loses a segment's contents although it has a backup.
func (o *Options) discards(s *segment) bool {
	return o.Discard && !slices.Contains(o.Except, s.tag.name)
}

// backupOf returns where a pause saves a segment's contents, if it does. A segment that has host memory for its
// contents keeps using it. Another process saves the contents of its own memory.
func (o *Options) backupOf(s *segment) BackupKind {
	if o.discards(s) || s.isImported() {
		return BackupNone
	}
	kind := s.backup
	if o.SaveAll && kind == BackupNone {
		kind = BackupHost
	}
	if o.ToMemory && (kind == BackupHost || kind == BackupPeer) {
		return backupMemory
	}
	if (o.ToDisk || s.device.onHost) && kind == BackupHost && s.contents == nil {
		return BackupDisk
	}
	return kind
}

// plan chooses the parts of a device's segments to copy: contents worth keeping, without blocks that are kept already.
func (e *Engine) plan(b *batch, o *operation) error {
	segments := filter(b.segments, func(s *segment) bool { return s.state == active && o.backupOf(s) != BackupNone })
	b.items, b.saving = map[BackupKind][]store.Item{}, map[BackupKind][]*segment{}
	var total uint64
	e.mu.Lock()
	there := o.Toward[b.device.uuid]
	target, reached := b.device.near[there.Device]
	e.mu.Unlock()
	room, used := there.Room, uint64(0)
	mayUse := e.peer.Reserve != nil && !o.RetainBackup && !reached
	// Only when a segment wants it, because the process then shows itself to others. An unknown node counts as 0.
	reserved := sync.OnceValue(func() uint64 { return e.peer.Reserve.Free(max(0, b.job.Node)) })
	if b.job.Portable = reached; reached { // sparse ones get the room that is left: they cost the host least
		inTurn, err := e.roomInTurn(b, o, there.Room, target)
		if err != nil {
			return err
		}
		room = max(room, inTurn)
		sparse := func(s *segment) bool { return s.sparse }
		dense := func(s *segment) bool { return !s.sparse }
		segments = append(filter(segments, dense), filter(segments, sparse)...)
	}
	sums, err := e.hash(b, segments, o.Verify, o.ToMemory)
	if err != nil {
		return err
	}
	for _, s := range segments {
		if s.contents != nil && store.Scattered(s.contents) { // the device has all that counts
			e.mu.Lock()
			s.discard()
			e.mu.Unlock()
		}
		kind := o.backupOf(s)
		item := store.Item{Span: s.backupSpan(), Kept: s.contents, Parts: s.all(), Target: s.target}
		if reached && s.contents == nil && kind != BackupDisk && kind != backupMemory {
			if kind = BackupHost; s.length() <= room {
				kind, item.Target = BackupPeer, target
				room -= s.length()
			}
		}
		to := saved{contents: s.contents, current: true, sums: sums[s]}
		if kind == BackupHost || kind == backupMemory {
			to.parts = s.worthKeeping(sums[s], s.sparse || o.ToMemory)
		}
		if item.Sparse = to.parts != nil; item.Sparse {
			item.Parts = to.parts.saved
		}
		if kind == backupMemory || item.Sparse != (s.parts != nil) || item.Sparse && s.contents.Bytes() < item.Needs() {
			item.Kept = nil
		} else if !item.Sparse && s.incremental && s.current && s.sums != nil && sums[s] != nil {
			item.Parts = blocks(s.length(), func(i int) bool { return s.sums[i] != sums[s][i] })
		}
		if mayUse && kind == BackupHost && s.contents == nil && !item.Sparse && !s.incremental &&
			used+s.length() <= reserved() {
			kind, item.Target = BackupPeer, store.Reserved
			used += s.length()
		}
		total += store.Ranges(item.Parts).Bytes()
		b.items[kind], b.saving[kind] = append(b.items[kind], item), append(b.saving[kind], s)
		s.outcome.saved = to
	}
	b.progress.total.Store(total)
	return nil
}

// roomInTurn returns how many bytes of contents can wait at a destination that has no room for them beside the process:
// they return extent by extent, and each makes room for the next (makeRoom). beside is the room beside the process.
func (e *Engine) roomInTurn(b *batch, o *operation, beside uint64, target int) (uint64, error) {
	process, largest := uint64(0), uint64(0)
	for _, s := range b.segments {
		if s.state == active {
			process, largest = process+s.length(), max(largest, s.length())
		}
	}
	remainder, err := e.peer.Remainder(target)
	largest = max(largest, min(o.ExtentBytes, process)) + remainder
	return beside + process - min(beside+process, largest), err
}

// Live says which bytes of size bytes at an address have contents that the next pause is to keep; the others are
// unspecified after the resume. The ranges may be in any order. It counts for that pause alone, even if the pause
// fails, so that no byte is lost which the program uses later. It replaces what an earlier call said about the same
// bytes. It affects only memory whose contents go to host memory. Errors: cuda.InvalidValue where some of the bytes are
// in no segment, or in a paused one, or a range is beyond them.
func (e *Engine) Live(address uintptr, size uint64, live []store.Range) error {
	for _, r := range live {
		if r.Offset > size || r.Size > size-r.Offset {
			return cuda.Refuse(cuda.InvalidValue, "the live range of %d bytes at offset %d reaches past the %d bytes "+
				"at %#x", r.Size, r.Offset, size, address)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	segments, err := e.across(address, size)
	if err != nil {
		return err
	}
	joined := store.Union(live)
	for _, s := range segments {
		if s.slab != nil || s.backup == BackupDisk || s.backup == BackupPeer {
			continue // BackupNone counts: a pause with SaveAll saves it in host memory
		}
		begin, end := max(address, s.address), min(address+uintptr(size), s.address+uintptr(s.length()))
		dead := store.Ranges{{Offset: uint64(begin - address), Size: uint64(end - begin)}}.Without(joined)
		for i := range dead {
			dead[i].Offset -= uint64(s.address - address) // which may be below 0, and wrap
		}
		about := store.Range{Offset: uint64(begin - s.address), Size: uint64(end - begin)}
		s.dead = s.dead.Replace(about, dead)
	}
	return nil
}

// across lists the segments that size bytes at an address lie in, none of which a transition works on. The caller holds
// e.mu.
func (e *Engine) across(address uintptr, size uint64) (segments []*segment, err error) {
	for at := address; uint64(at-address) < size; {
		s := e.segmentAt(at)
		if s != nil && s.owner == aTransition {
			e.settled.Wait()
			segments, at = nil, address
			continue
		}
		switch {
		case s == nil || s.owner == aFree:
			return nil, cuda.Refuse(cuda.InvalidValue, "%#x, of %d bytes at %#x, is in no region", at, size, address)
		case s.state != active:
			return nil, cuda.Refuse(cuda.InvalidValue, "%#x is paused: say what is live before a pause", at)
		}
		segments, at = append(segments, s), s.address+uintptr(s.length())
	}
	return segments, nil
}

// ForgetLive ends what Live has said about segments with the tags (nil: every tag).
func (e *Engine) ForgetLive(tags []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.visit(tags, func(_ *device, s *segment) int {
		if s.owner != aTransition { // else its end forgets it
			s.dead = nil
		}
		return 1
	})
}
