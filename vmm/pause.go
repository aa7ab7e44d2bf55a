package vmm

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"tms/vmm/backup"
)

// Pause releases the physical memory of every active segment with the tag, on all devices, after
// saving the contents of those that have a backup (unless Options.Discard), and returns how many bytes that was.
// When it returns the memory is free for others; memory of contents that are discarded is back, unless that takes
// long: see discarded.
//
// It is a transaction: wait for the devices; save contents; unmap all; release all. An error in
// one of the first three leaves every segment active; one while releasing leaves them paused, with
// the memory that was refused still held, and another Pause releases it.
// Errors: ErrCapturing, backup.ErrHostMemory, *cuda.Error. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Pause(o Options) (freed uint64, err error) {
	defer e.audit(&err)
	defer e.observed("pause", &o, &freed, &err)()
	o.discarded = &discarded{}
	if freed, err = e.pauseShared(o); err != nil {
		return freed, fmt.Errorf("pause: %w", err)
	}
	defer o.spent.waitedSince(time.Now())
	o.discarded.await()
	return freed, nil
}

func (e *Engine) tryPause(o Options) (freed uint64, err error) {
	if o.Capturing {
		return 0, ErrCapturing
	}
	e.warnUnknown("pause", o.Tag)
	start := time.Now()
	wanted := func(s *segment) bool {
		return s.imported == nil && (s.is(active) && !s.stays() || s.is(paused) && s.extent != nil)
	}
	// What was submitted before the call is waited for here, while nothing is held that another thread of the
	// host may need in order to let it end. Whoever launches during a pause must not use the tag's memory.
	devices := slices.Collect(maps.Keys(e.choose(o.Tag, func(s *segment) bool { return wanted(s) || s.owner == aFree })))
	// What was freed before the call is to be free too when pause returns.
	if err := e.freeQuiesced(devices, func() error { return e.quiesce(devices...) }); err != nil {
		return 0, err
	}
	e.FreeDeferred()
	reported := func() {}
	defer func() { reported() }() // when the lock is gone: a report may wait for what the host holds
	e.transition.Lock()
	defer e.transition.Unlock()
	if !o.Discard && e.usesDisk(&o) {
		if err := e.disk.Configure(o.DiskDir, o.DiskSetting, o.DiskChunk); err != nil {
			return 0, err
		}
	}
	batches := e.begin(o.Tag, func(s *segment) bool { return wanted(s) && slices.Contains(devices, s.device) })
	o.spent.waitedSince(start)
	if len(batches) == 0 {
		return 0, nil
	}
	reported = track(batches, "pause", o.Progress)
	err = e.transit(batches, func() error {
		freed, err = e.pause(batches, o)
		return err
	}, func(t *tag) {
		t.lastPause, t.pausedSince = time.Since(start).Seconds(), float64(time.Now().UnixMilli())/1000
	})
	o.spent.copiedBy(batches)
	return freed, err
}

func (e *Engine) pause(batches []*batch, o Options) (freed uint64, first error) {
	var err error
	if !o.Discard {
		fresh := func(s *segment) bool { return s.state == active && o.backupOf(s) == BackupHost && s.contents == nil }
		if err := e.checkHost(batches, fresh); err != nil {
			return 0, err
		}
		err = parallel(batches, func(b *batch) error {
			defer o.spent.copyingSince(time.Now())
			return e.save(b, &o)
		})
	}
	if err == nil {
		err = unmap(batches, o.Gated)
	}
	if err != nil {
		dropSaved(batches)
		return 0, err
	}
	for _, b := range batches {
		for _, s := range b.segments {
			if o.Discard && s.state == active && s.contents != nil {
				o.discarded.add(s)
				s.contents.Discard()
				s.outcome.kept = kept{}
			}
			s.comesToPaused(o.Gated)
		}
		for _, x := range b.extents {
			if err := x.release(); err == nil {
				freed += x.size
			} else if first == nil {
				first = fmt.Errorf("paused, but memory is still held; pause again to release it: %w", err)
			}
		}
	}
	return freed, first
}

// usesDisk tells whether a pause would write files.
func (e *Engine) usesDisk(o *Options) bool {
	return len(e.choose(o.Tag, func(s *segment) bool { return s.is(active) && o.backupOf(s) == BackupDisk })) > 0
}

// backupOf is where a pause saves a segment's contents. What host memory is kept for is saved there, at no price.
func (o *Options) backupOf(s *segment) BackupKind {
	if o.ToDisk && s.backup == BackupHost && s.contents == nil {
		return BackupDisk
	}
	return s.backup
}

// save copies the contents of the active segments that have a backup, or those of their blocks that are
// not kept already.
func (e *Engine) save(b *batch, o *Options) error {
	var segments []*segment
	for _, s := range b.segments {
		if s.state == active && s.backup != BackupNone {
			segments = append(segments, s)
		}
	}
	sums, err := e.hash(b, segments, o.Verify)
	if err != nil {
		return err
	}
	items := map[BackupKind][]backup.Item{}
	saving := map[BackupKind][]*segment{}
	var total uint64
	for _, s := range segments {
		item := backup.Item{Span: s.backupSpan(), Kept: s.contents, Target: s.target}
		size := item.Size
		if s.incremental && s.current && s.sums != nil && sums[s] != nil {
			item.Partial, item.Changed = true, changed(item.Span, s.sums, sums[s])
			size = 0
			for _, r := range item.Changed {
				size += r.Size
			}
		}
		kind := o.backupOf(s)
		items[kind] = append(items[kind], item)
		saving[kind] = append(saving[kind], s)
		total += size
	}
	b.device.copying(total)
	stores := map[BackupKind]backup.Store{BackupHost: e.host, BackupDisk: e.disk, BackupPeer: e.peer}
	for kind, segments := range saving {
		saved, err := stores[kind].Save(b.job(), items[kind])
		if err != nil {
			return err
		}
		for i, s := range segments {
			s.outcome.kept = kept{saved[i], true, sums[s]}
		}
	}
	return nil
}

// dropSaved discards what a failed pause saved, but not what was kept from before, nor what a
// segment needs that is paused all the same because it could not be mapped again.
func dropSaved(batches []*batch) {
	for _, b := range batches {
		for _, s := range b.segments {
			if s.outcome.state != active {
				continue
			}
			if s.outcome.contents != s.contents {
				s.outcome.contents.Discard()
			}
			s.outcome.kept = s.kept
			// What was kept may have been overwritten in part.
			s.outcome.current, s.outcome.sums = false, nil
		}
	}
}

// unmap detaches all, or after an error maps again what it had detached. What could not be mapped again
// is left paused, its memory still held, so nothing is lost.
func unmap(batches []*batch, gated bool) error {
	var undo []*extent
	for _, b := range batches {
		for _, x := range b.extents {
			wasMapped := x.step >= mapped
			if err := x.detach(); err != nil {
				for _, u := range undo {
					if u.attach() != nil {
						for _, s := range u.segments {
							s.comesToPaused(gated)
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
