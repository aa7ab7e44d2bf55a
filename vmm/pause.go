package vmm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tms/internal/aid/backoff"
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
	_, theirs, err := e.pausePart(o, true)
	if err == nil {
		err = e.awaitImporters(o)
	}
	if err == nil {
		err = e.resumeHeld(o)
	}
	var own []*segment
	if err == nil {
		freed, own, err = e.pausePart(o, false)
	}
	if err != nil && len(own) == 0 {
		open()
		err = e.remap(o, theirs, err)
	}
	if err != nil {
		return freed, fmt.Errorf("pause: %w", err)
	}
	o.discarded.await(&o.spent)
	return freed, nil
}

// closeShares closes the segments of a pause to new importers, until the caller calls open.
func (e *Engine) closeShares(o *operation) (open func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sharing.closing = append(e.sharing.closing, o)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.sharing.closing = slices.DeleteFunc(e.sharing.closing, func(other *operation) bool { return other == o })
	}
}

// pausePart pauses the memory of other processes, or this one's own. It returns how many bytes that freed, and which
// segments lost their memory, even after an error.
func (e *Engine) pausePart(o *operation, theirs bool) (freed uint64, taken []*segment, err error) {
	start := time.Now()
	wanted := func(s *segment) bool {
		return s.isImported() == theirs && o.means(s) && (s.pausable() || s.is(paused) && s.extent != nil)
	}
	// Here the devices finish the work that was submitted before the call. Another thread of the host may be needed for
	// that, so this thread holds no lock. A kernel launched during a pause must not use the tag's memory.
	goes := func(s *segment) bool { return wanted(s) || s.isImported() == theirs && s.owner == aFree }
	going := map[*device]bool{}
	e.mu.Lock()
	e.visit(o.Tags, func(d *device, s *segment) int {
		if !going[d] && goes(s) {
			going[d] = true
		}
		return 1
	})
	e.mu.Unlock()
	devices := slices.Collect(maps.Keys(going))
	if theirs && len(devices) == 0 {
		return 0, nil, nil
	}
	// Memory that was freed before the call must be free too when Pause returns.
	if err := e.freeQuiesced(devices, func() error { return e.quiesce(devices...) }); err != nil {
		return 0, nil, err
	}
	if !theirs { // else other processes wait for this one
		e.FreeDeferred()
	}
	o.spent.waited += time.Since(start)
	err = e.transact("pause", o, func(s *segment) bool { return wanted(s) && slices.Contains(devices, s.device) },
		func(batches []*batch) error {
			freed, taken, err = e.pause(batches, o)
			if !theirs {
				e.count(batches, start, err, func(t *totals) *stats.Total { return &t.pauses })
			}
			return err
		},
		func(t *tag) {
			t.lastPause, t.pausedSince = time.Since(start).Seconds(), float64(time.Now().UnixMilli())/1000
		})
	return freed, taken, err
}

// pause is the work of the transaction.
func (e *Engine) pause(batches []*batch, o *operation) (freed uint64, taken []*segment, first error) {
	err := e.saveAll(batches, o)
	if err == nil {
		err = unmap(batches, o)
	}
	if err != nil {
		dropSaved(batches)
		return 0, nil, err
	}
	for _, b := range batches {
		for _, s := range b.segments {
			if s.outcome.state = paused; s.state == paused {
				s.outcome.held = false
				continue
			}
			taken = append(taken, s)
			if o.discards(s) {
				s.outcome.saved = saved{}
			}
			if s.replaced() {
				o.discarded.add(s.contents, s.prompt)
				s.contents.Discard()
			}
		}
		for _, x := range b.extents {
			if err := x.release(); err == nil {
				freed += x.size
				b.moved += x.size
			} else if first == nil {
				first = fmt.Errorf("paused, but memory is still held; pause again to release it: %w", err)
			}
		}
	}
	return freed, taken, first
}

// saveAll copies the contents of the active segments that have a backup. Where there is no directory for files, or too
// little host memory, it refuses before anything is copied.
func (e *Engine) saveAll(batches []*batch, o *operation) error {
	toDisk := func(s *segment) bool { return s.state == active && o.backupOf(s) == BackupDisk }
	for _, b := range batches {
		if slices.ContainsFunc(b.segments, toDisk) {
			if err := e.disk.Configure(o.DiskDir, o.DiskSetting); err != nil {
				return err
			}
		}
	}
	start := time.Now()
	if err := parallel(batches, func(b *batch) error { return e.plan(b, o) }); err != nil {
		return err
	}
	var items []store.Item
	for _, b := range batches {
		items = append(items, b.items[BackupHost]...)
	}
	if err := e.host.Check(batches[0].job.Budget, items); err != nil {
		return err
	}
	stores := map[BackupKind]store.Store{BackupHost: e.host, BackupDisk: e.disk, BackupPeer: e.peer}
	return parallel(batches, func(b *batch) error {
		defer o.spent.copyingSince(start)
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
	if o.ToDisk && kind == BackupHost && s.contents == nil {
		return BackupDisk
	}
	return kind
}

// plan chooses the parts of a device's segments to copy: contents worth keeping, without blocks that are kept already.
func (e *Engine) plan(b *batch, o *operation) error {
	segments := filter(b.segments, func(s *segment) bool { return s.state == active && o.backupOf(s) != BackupNone })
	sums, err := e.hash(b, segments, o.Verify)
	if err != nil {
		return err
	}
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
	for _, s := range segments {
		if s.contents != nil && store.Scattered(s.contents) { // the device has all that counts
			e.mu.Lock()
			s.discard()
			e.mu.Unlock()
		}
		kind := o.backupOf(s)
		item := store.Item{Span: s.backupSpan(), Kept: s.contents, Parts: s.all(), Target: s.target}
		if reached && s.contents == nil && kind != BackupDisk {
			if kind = BackupHost; s.length() <= room {
				kind, item.Target = BackupPeer, target
				room -= s.length()
			}
		}
		to := saved{contents: s.contents, current: true, sums: sums[s]}
		if kind == BackupHost {
			to.parts = s.worthKeeping(sums[s])
		}
		if item.Sparse = to.parts != nil; item.Sparse {
			item.Parts = to.parts.saved
		}
		if item.Sparse != (s.parts != nil) || item.Sparse && s.contents.Bytes() < item.Needs() {
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

// unmap detaches all extents. After an error it maps the detached extents again. An extent that the driver does not map
// again stays paused, with its memory held, so nothing is lost.
func unmap(batches []*batch, o *operation) error {
	var undo []*extent
	for _, b := range batches {
		for _, x := range b.extents {
			wasMapped := x.step >= mapped
			if err := x.detach(); err != nil {
				for _, u := range undo {
					if u.attach() != nil {
						for _, s := range u.segments {
							if s.outcome.state = paused; s.state == active && o.backupOf(s) == BackupNone {
								s.pauseHeld()
							}
						}
					}
				}
				return err
			}
			if wasMapped {
				undo = append(undo, x)
			}
		}
	}
	return nil
}

// dropSaved discards what a failed pause saved. It keeps contents that were kept before, and the contents of a segment
// that could not be mapped again, and so is paused.
func dropSaved(batches []*batch) {
	for _, b := range batches {
		for _, s := range b.segments {
			if s.outcome.state != active {
				if s.replaced() {
					s.contents.Discard()
				}
				continue
			}
			if s.outcome.contents != s.contents {
				s.outcome.contents.Discard()
			}
			s.outcome.saved = s.saved
			// The failed pause may have overwritten part of what was kept.
			s.outcome.current, s.outcome.sums = false, nil
		}
	}
}

// replaced reports whether a pause puts something else in the place of what was kept of a segment before.
func (s *segment) replaced() bool { return s.contents != nil && s.outcome.contents != s.contents }

// awaitImporters waits until no other process has an extent mapped that a pause is to take. Errors: ErrImported.
func (e *Engine) awaitImporters(o *operation) error {
	start := time.Now()
	defer func() { o.spent.waited += time.Since(start) }()
	var ids []uint64
	e.mu.Lock()
	seen := map[*extent]bool{}
	e.visit(o.Tags, func(_ *device, s *segment) int {
		if !s.isImported() && s.pausable() && s.extent != nil && !seen[s.extent] {
			seen[s.extent] = true
			ids = append(ids, s.extent.exports...)
			for _, part := range s.extent.segments {
				if part.shared != 0 {
					ids = append(ids, part.shared)
				}
			}
		}
		return 1
	})
	e.mu.Unlock()
	for wait := (backoff.Backoff{Next: firstLook, Most: 2 * time.Millisecond}); len(ids) > 0; {
		left := e.sharing.left(e.process, ids)
		if len(left) == 0 {
			break
		}
		if !wait.SleepUnless(start.Add(o.Importers), o.Cancel) {
			var pids []string
			for _, pid := range left {
				pids = append(pids, strconv.Itoa(pid))
			}
			return fmt.Errorf("%w: process %s, after %v. Pause those too, at the same time: in the program "+
				"(tms.distributed), or by tms pause --job; nothing has changed", ErrImported, strings.Join(pids, ", "),
				o.Importers)
		}
	}
	return nil
}

// resumeHeld makes segments active again that a failed transition left paused, if their memory alone has the contents
// and a pause would save these. The pause can then save them like all others, before it gives the memory back.
func (e *Engine) resumeHeld(o *operation) error {
	saves := func(s *segment) bool { return s.held && o.backupOf(s) != BackupNone }
	wanted := func(s *segment) bool {
		return s.is(paused) && s.extent != nil && slices.ContainsFunc(s.extent.segments, saves)
	}
	return e.transact("resume", o, wanted, func(batches []*batch) error {
		e.gather(batches, 0)
		return e.resume(batches, o, false)
	}, func(*tag) {})
}

const soon = 100 * time.Millisecond

// remap maps again the memory of other processes that a pause had unmapped before it failed, and returns why the pause
// failed.
func (e *Engine) remap(o *operation, theirs []*segment, failed error) error {
	wait := soon // others have paused, and do not come back because of this one
	if errors.Is(failed, ErrImported) {
		wait = o.Importers // others are refused for the same reason, if later
	}
	if err := e.resumeImports(o, wait, nil, theirs); err != nil {
		return fmt.Errorf("%w; and memory of other processes is not mapped again, resume it: %v", failed, err)
	}
	return failed
}
