package vmm

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

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

// streams is the number of streams that a pause or resume uses at once, plus some that the program may make then.
const streams = 16

// haveStreams makes the driver take the device memory that streams need, which the driver then keeps. It runs at the
// first allocation with contents, so that a pause and a resume leave as much memory in use as they found. A caller that
// needs a stream gets an error again. (cuStreamCreate; 2 MiB each at the 2nd and at the 6th, seen on driver 580)
func (d *device) haveStreams() {
	if d.streamed.Swap(true) {
		return
	}
	made := make([]cuda.Stream, 0, streams)
	_ = d.driver.With(d.context, func() error {
		for range streams {
			stream, err := d.driver.StreamCreate()
			if err != nil {
				break
			}
			made = append(made, stream)
		}
		for _, stream := range made {
			d.driver.DropStream(stream)
		}
		return nil
	})
}
