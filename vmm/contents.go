package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/store"
)

// parts say what a backup has of a segment, and what becomes of the rest.
type parts struct {
	saved store.Ranges // contents have these, one after the other
	zero  store.Ranges // blocks of the content hash, which are filled with zeros again
	lost  store.Ranges // unspecified after a resume
}

// saveAll copies the contents of the active segments that have a backup. Where there is no directory for files, or too
// little host memory, it refuses before anything is copied.
func (e *Engine) saveAll(batches []*batch, o *operation, left *left) error {
	toDisk := func(s *segment) bool { return s.state == active && o.backupOf(s) == BackupDisk }
	for _, b := range batches {
		if slices.ContainsFunc(b.segments, toDisk) {
			if b.device.savesElsewhere.Load() {
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
		for _, p := range append(b.parts, &b.rest) {
			items = append(items, slices.Concat(p.items[BackupHost], p.items[backupMemory])...)
		}
	}
	if err := e.host.Check(batches[0].job.Budget, items); err != nil {
		return err
	}
	return guard.All(batches, func(b *batch) error {
		defer func() { b.copying = time.Since(start) }()
		err := e.leaveInParts(b, o, left)
		if err == nil && !left.failed.Load() { // else another device's error is returned
			if err = e.save(b, &b.rest); err != nil {
				left.failed.Store(true)
			}
		}
		return err
	})
}

// save copies the contents of a part.
func (e *Engine) save(b *batch, p *part) error {
	stores := map[BackupKind]store.Store{BackupHost: e.host, BackupDisk: e.disk, BackupPeer: e.peer,
		backupMemory: e.memory}
	for kind, segments := range p.saving {
		copies, err := stores[kind].Save(b.job, p.items[kind])
		if err != nil {
			return err
		}
		for i, s := range segments {
			s.outcome.contents = copies[i]
		}
	}
	return nil
}

// backupOf returns where a pause saves a segment's contents, if it does. A segment that has host memory for its
// contents keeps using it. Another process saves the contents of its own memory.
func (o *Options) backupOf(s *segment) BackupKind {
	if o.discards(s) || s.imported != nil {
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

// discards reports whether a pause loses a segment's contents although it has a backup.
func (o *Options) discards(s *segment) bool {
	return o.Discard && !slices.Contains(o.Except, s.tag.name)
}

// plan chooses the parts of a device's segments to copy: contents worth saving, without blocks that are saved already.
func (e *Engine) plan(b *batch, o *operation) error {
	segments := filter(b.segments, func(s *segment) bool { return s.state == active && o.backupOf(s) != BackupNone })
	var total uint64
	e.mu.Lock()
	there := o.Toward[b.device.uuid]
	target, reached := b.device.near[there.Device]
	e.mu.Unlock()
	room, used := there.Room, uint64(0)
	mayUse := e.peer.Reserve != nil && !o.RetainBackup && !reached
	// Only when a segment wants it, because the process then shows itself to others. An unknown node counts as 0.
	reserved := sync.OnceValue(func() uint64 { return e.peer.Reserve.Free(max(0, b.job.Node)) })
	fresh := func(s *segment) bool {
		return o.backupOf(s) == BackupHost && s.contents == nil && !s.sparse && !s.incremental
	}
	e.cut(b, o, func() uint64 {
		if !mayUse || !slices.ContainsFunc(segments, fresh) {
			return 0
		}
		return reserved()
	})
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
	whole := func(bytes uint64) uint64 { return (bytes + cuda.HostExtent - 1) / cuda.HostExtent * cuda.HostExtent }
	for _, s := range segments {
		in := cmp.Or(b.of[s.extent], &b.rest)
		if s.contents != nil && store.Scattered(s.contents) { // the device has all that counts
			e.mu.Lock()
			s.discard()
			e.mu.Unlock()
		}
		kind := o.backupOf(s)
		item := store.Item{Span: s.backupSpan(), Saved: s.contents, Parts: s.all(), Target: s.target}
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
			item.Saved = nil
		} else if !item.Sparse && s.incremental && s.current && s.sums != nil && sums[s] != nil {
			item.Parts = blocks(s.length(), func(i int) bool { return s.sums[i] != sums[s][i] })
		}
		if more := whole(in.reserved+s.length()) - whole(in.reserved); mayUse && kind == BackupHost && s.contents == nil &&
			!item.Sparse && !s.incremental && used+more <= reserved() {
			kind, item.Target = BackupPeer, store.Reserved
			used, in.reserved = used+more, in.reserved+s.length()
		}
		total += store.Ranges(item.Parts).Bytes()
		in.add(kind, s, item)
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

// hash returns the sums of all segments with verify, else of those of which more than a block has contents worth
// keeping: of the incremental and sparse ones, or with sparse of all. It returns nil if no segment needs sums. A driver
// that cannot hash makes every pause a full one.
func (e *Engine) hash(b *batch, segments []*segment, verify, sparse bool) (map[*segment][]digest.Sum, error) {
	hashed := filter(segments, func(s *segment) bool {
		saves := s.dead == nil || s.length() > s.dead.Bytes()+digest.BlockSize
		return verify || saves && (s.incremental || s.sparse || sparse)
	})
	if len(hashed) == 0 {
		return nil, nil
	}
	spans := make([]digest.Span, len(hashed))
	for i, s := range hashed {
		spans[i] = digest.Span(s.reachable())
	}
	b.device.hashed.Store(true)
	sums, err := e.hasher.Sums(b.device.context, spans)
	if errors.Is(err, cuda.NotSupported) && !verify {
		e.cannotHash.Do(func() {
			e.process.Warn(fmt.Sprintf("incremental or sparse backup: every pause copies everything: %v", err))
		})
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	of := make(map[*segment][]digest.Sum, len(hashed))
	for i, s := range hashed {
		of[s] = sums[i]
	}
	return of, nil
}

// worthKeeping returns the parts of the segment that a pause to host memory keeps, given its sums if there are any, or
// nil if the pause keeps all; sparse ones have no blocks of zeros.
func (s *segment) worthKeeping(sums []digest.Sum, sparse bool) *parts {
	p := &parts{lost: s.dead}
	if sparse && sums != nil {
		p.zero = blocks(s.length(), func(block int) bool { return sums[block] == digest.Sum{} }) // of any length
		p.lost = s.dead.Without(p.zero)
	} else if s.dead == nil {
		return nil
	}
	p.saved = s.all().Without(p.zero).Without(p.lost)
	return p
}

// blocks lists the wanted blocks of a size in bytes, and joins neighbours.
func blocks(size uint64, wanted func(block int) bool) store.Ranges {
	var list []store.Range
	for i := 0; uint64(i)*digest.BlockSize < size; i++ {
		if wanted(i) {
			list = append(list, blockOf(size, i))
		}
	}
	return store.Union(list)
}

func blockOf(size uint64, block int) store.Range {
	offset := uint64(block) * digest.BlockSize
	return store.Range{Offset: offset, Size: min(digest.BlockSize, size-offset)}
}

func (s *segment) backupSpan() store.Span {
	return store.Span{Address: s.address, Size: s.length()}
}

// reachable returns where the segment's device reaches its contents.
func (s *segment) reachable() store.Span {
	return store.Span{Address: cmp.Or(s.outcome.aside, s.address), Size: s.length()}
}

func (s *segment) all() store.Ranges { return store.Ranges{{Size: s.length()}} }

// back returns the parts of a segment that a resume brings back, and the parts that it does not.
func (s *segment) back() parts {
	switch {
	case s.held:
		return parts{}
	case s.contents == nil || !s.current:
		return parts{lost: s.all()}
	case s.parts == nil:
		return parts{saved: s.all()}
	}
	return *s.parts
}

// fill writes a word into ranges of each segment, as far as they have whole words. (cuMemsetD32Async)
func (e *Engine) fill(b *batch, word uint32, of func(*segment) store.Ranges) error {
	if !slices.ContainsFunc(b.segments, func(s *segment) bool { return of(s) != nil }) {
		return nil
	}
	return e.driver.OnStream(b.device.context, func(stream cuda.Stream) error {
		for _, s := range b.segments {
			for _, r := range of(s) {
				begin, end := (r.Offset+3)&^3, (r.Offset+r.Size)&^3
				if begin >= end {
					continue
				}
				address := s.reachable().Address + uintptr(begin)
				if err := e.driver.MemsetD32Async(address, word, (end-begin)/4, stream); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// poisonWord is NaN in every floating-point format: of 16, 32 and 64 bits, and both of 8 bits. A resume fills memory
// with it whose contents were not saved, so that a silent use of lost contents shows.
const poisonWord = 0x7fff7fff

// zeroed lists what a resume fills with zeros.
func zeroed(s *segment) store.Ranges {
	if s.outcome.state == active { // makeRoom has
		return nil
	}
	return s.back().zero
}

// verify compares blocks of resumed segments, if all of the block comes back, with the sums taken before the pause.
func (e *Engine) verify(b *batch, resumed []*segment) error {
	restored := filter(resumed, func(s *segment) bool { return s.contents != nil && s.current && s.sums != nil })
	now, err := e.hash(b, restored, true, false)
	if err != nil {
		return err
	}
	for _, s := range restored {
		wrong := blocks(s.length(), func(i int) bool {
			block := store.Ranges{blockOf(s.length(), i)}
			return s.sums[i] != now[s][i] && block.Without(s.back().lost).Bytes() == block.Bytes()
		})
		if len(wrong) > 0 {
			return fmt.Errorf("%w: tag %q, segment %#x of %d bytes on device %d, block %d (bytes %d to %d); "+
				"it is still paused, with what was saved; if memory was overwritten while it was saved, free it and load "+
				"its contents again",
				ErrContents, s.tag.name, s.address, s.size, b.device.ordinal, wrong[0].Offset/digest.BlockSize,
				wrong[0].Offset, wrong[0].Offset+min(wrong[0].Size, digest.BlockSize))
		}
	}
	return nil
}

// makeRoom lets go of contents that have waited in memory of the same device, and are back: too little is free for
// both. Their segments stay active even if the resume of others fails, so they are verified first.
func (e *Engine) makeRoom(b *batch, o *operation, loaders map[store.Store]store.Loader) error {
	var err error
	if loader := loaders[e.peer]; loader != nil { // else a wait for memory has ended it
		err = loader.Wait()
		delete(loaders, e.peer)
	}
	of := map[*segment]bool{}
	for _, x := range b.back {
		for _, s := range x.segments {
			of[s] = true
		}
	}
	if err == nil {
		err = e.fill(b, 0, func(s *segment) store.Ranges {
			if !of[s] {
				return nil
			}
			return zeroed(s)
		})
	}
	if err == nil && o.Verify {
		err = e.verify(b, slices.Collect(maps.Keys(of)))
	}
	if err != nil {
		return err
	}
	for s := range of {
		s.contents.Discard()
		s.outcome = outcome{state: active, aside: s.outcome.aside}
	}
	b.back = nil
	e.driver.Reclaim.Drain()
	return nil
}

// pauseHeld makes paused the outcome of a segment whose extent alone has what it holds: neither older contents nor a
// poison must come back in its place.
func (s *segment) pauseHeld() {
	s.outcome.state, s.outcome.current, s.outcome.sums, s.outcome.held = paused, false, nil, true
}
