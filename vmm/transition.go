package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"tms/internal/guard"
	"tms/vmm/backup"
	"tms/vmm/cuda"
)

// Options of a pause or resume.
type Options struct {
	Tag          *string        // nil: every tag
	RetainBackup bool           // keep host copies after resume
	PoolBytes    uint64         // without retaining: keep so many bytes of pinned host memory for the next pause
	DiskDir      string         // where a pause puts files; "": the system's directory for temporary files
	DiskChunk    uint64         // bytes of one read or write
	Verify       bool           // compare contents after a resume with those before the pause
	ExtentBytes  uint64         // segments side by side get extents of up to so much when resumed; 0: one each
	Wait         time.Duration  // how long a resume tries again when memory is short
	Poison       bool           // fill memory that a resume brings back without contents with NaNs
	Progress     func(Progress) // nil, or told now and then how far contents have come
	Capturing    bool           // a stream of the process is being captured
}

// batch is a device's part in a transition.
type batch struct {
	device   *device
	segments []*segment // by address
	extents  []*extent  // that they have, or get, by address
	moved    []*extent  // of a shrink: those that have taken the place of others
}

// Pause releases the physical memory of every active segment with the tag, on all devices, after
// saving the contents of those that have a backup. When it returns the memory is free for others.
//
// It is a transaction: wait for the devices; save contents; unmap all; release all. An error in
// one of the first three leaves every segment active; one while releasing leaves them paused, with
// the memory that was refused still held, and another Pause releases it.
// Errors: ErrCapturing, backup.ErrHostMemory, *cuda.Error. (cuMemUnmap, cuMemRelease)
func (e *Engine) Pause(o Options) (err error) {
	defer e.audit(&err)
	if o.Capturing {
		return fmt.Errorf("pause: %w", ErrCapturing)
	}
	e.transition.Lock()
	defer e.transition.Unlock()
	start := time.Now()
	if e.usesDisk(o.Tag) {
		if err := e.disk.Configure(o.DiskDir, o.DiskChunk); err != nil {
			return fmt.Errorf("pause: %w", err)
		}
	}
	e.FreeDeferred()
	e.waitOrdered() // their memory is to be free too when pause returns
	batches := e.begin(o.Tag, func(s *segment) bool {
		return s.state == active && !s.stays() || s.state == paused && s.extent != nil && !s.extent.only
	})
	if len(batches) == 0 {
		return nil
	}
	ended := track(batches, "pause", o.Progress)
	err = guard.Call(func() error { return e.pause(batches, o.Verify) }) // whatever happens, end must follow
	e.end(batches, func(t *tag) {
		if err == nil {
			t.lastPause = time.Since(start).Seconds()
		}
	})
	ended()
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

func (e *Engine) pause(batches []*batch, verify bool) error {
	for _, b := range batches {
		if err := b.device.synchronize(); err != nil {
			if captureForbids(err) {
				err = fmt.Errorf("%w: %w", ErrCapturing, err)
			}
			return err
		}
	}
	if err := parallel(batches, func(b *batch) error { return e.save(b, verify) }); err != nil {
		dropSaved(batches)
		return err
	}
	if err := unmap(batches); err != nil {
		dropSaved(batches)
		return err
	}
	var first error
	for _, b := range batches {
		for _, s := range b.segments {
			s.outcome.state = paused
		}
		for _, x := range b.extents {
			if err := x.release(); err != nil && first == nil {
				first = fmt.Errorf("paused, but memory is still held; pause again to release it: %w", err)
			}
		}
	}
	return first
}

// parallel runs f for every device at once and returns the first error, after all have ended.
func parallel(batches []*batch, f func(*batch) error) error {
	errs := make(chan error, len(batches))
	for _, b := range batches {
		go func() { errs <- guard.Call(func() error { return f(b) }) }()
	}
	var first error
	for range batches {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// store is where contents of a kind wait; nil: nowhere.
func (e *Engine) store(kind BackupKind) backup.Store {
	switch kind {
	case BackupHost:
		return e.host
	case BackupDisk:
		return e.disk
	case BackupPeer:
		return e.peer
	}
	return nil
}

// save copies the contents of the active segments that have a backup, or those of their blocks that are
// not kept already.
func (e *Engine) save(b *batch, verify bool) error {
	var segments []*segment
	for _, s := range b.segments {
		if s.state == active && s.backup != BackupNone {
			segments = append(segments, s)
		}
	}
	sums, err := e.hash(b.device, segments, verify)
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
		items[s.backup] = append(items[s.backup], item)
		saving[s.backup] = append(saving[s.backup], s)
		total += size
	}
	b.device.copying(total)
	for kind, segments := range saving {
		saved, err := e.store(kind).Save(b.device.job(), items[kind])
		if err != nil {
			return err
		}
		for i, s := range segments {
			s.outcome.kept = kept{saved[i], true, sums[s]}
		}
	}
	return nil
}

func (s *segment) backupSpan() backup.Span {
	return backup.Span{Address: s.address, Size: s.length()}
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
func unmap(batches []*batch) error {
	var undo []*extent
	for _, b := range batches {
		for _, x := range b.extents {
			wasMapped := x.mapped
			if err := x.detach(x.address); err != nil {
				for _, u := range undo {
					if u.attach(u.address) != nil {
						for _, s := range u.segments {
							s.outcome.state = paused
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

// Resume gives every paused segment with the tag new memory at its old address, and its contents
// where they were kept.
//
// It is a transaction: create, map and refill all, then drop what was kept. After an error every
// segment is still paused with its contents, and nothing new is held.
// Memory that is short is waited for, for a time if that is asked for.
// Errors: ErrCapturing, ErrContents, *cuda.Error with cuda.OutOfMemory when others hold the memory.
// (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) Resume(o Options) (err error) {
	defer e.audit(&err)
	if o.Capturing {
		return fmt.Errorf("resume: %w", ErrCapturing)
	}
	until := time.Now().Add(o.Wait)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := e.tryResume(o)
		if left := time.Until(until); errors.Is(err, cuda.OutOfMemory) && left > 0 {
			time.Sleep(min(pause, left))
			continue
		}
		if err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		return nil
	}
}

// How long a resume that waits for memory sleeps between tries.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 250 * time.Millisecond
)

func (e *Engine) tryResume(o Options) error {
	e.transition.Lock()
	defer e.transition.Unlock()
	start := time.Now()
	e.FreeDeferred()
	batches := e.begin(o.Tag, func(s *segment) bool { return s.state == paused && !s.stays() })
	if len(batches) == 0 {
		return nil
	}
	for _, b := range batches {
		b.gather(o.ExtentBytes)
	}
	ended := track(batches, "resume", o.Progress)
	err := guard.Call(func() error { return e.resume(batches, o) })
	e.end(batches, func(t *tag) {
		if err == nil {
			t.lastResume = time.Since(start).Seconds()
		}
	})
	ended()
	return err
}

func (e *Engine) resume(batches []*batch, o Options) error {
	if err := parallel(batches, func(b *batch) error { return e.restore(b, o) }); err != nil {
		for _, b := range batches {
			for _, x := range b.extents {
				// A second failure leaves a step undone; the extent knows, and the next
				// resume, pause or free goes on from there.
				_ = x.undo()
			}
		}
		return err
	}
	room := o.PoolBytes
	for _, b := range batches {
		for _, s := range b.segments {
			s.outcome.state = active
			switch {
			case s.contents == nil || (o.RetainBackup || s.incremental) && s.contents.Host() != 0:
			case s.contents.Host() != 0 && s.contents.Bytes() <= room:
				room -= s.contents.Bytes()
				s.outcome.current, s.outcome.sums = false, nil
			default:
				s.contents.Discard()
				s.outcome.kept = kept{}
			}
		}
	}
	return nil
}

// restore gives a device's segments their memory; the contents of each begin to come back as soon as
// it is mapped, while the driver still scrubs memory for the next.
func (e *Engine) restore(b *batch, o Options) (err error) {
	b.device.refreshUsers()
	job, total := b.device.job(), uint64(0)
	for _, s := range b.segments {
		if s.contents != nil && s.current {
			total += s.length()
		}
	}
	b.device.copying(total)
	loaders := map[backup.Store]backup.Loader{}
	defer func() {
		for _, l := range loaders {
			if waited := l.Wait(); err == nil {
				err = waited
			}
		}
		if err == nil && o.Verify {
			err = e.verify(b)
		}
		if err == nil && o.Poison {
			err = e.poison(b)
		}
	}()
	for i, x := range b.extents {
		if err := x.create(); err != nil {
			if errors.Is(err, cuda.OutOfMemory) {
				err = shortage(b, i, err)
			}
			return err
		}
		if err := x.attach(x.address); err != nil {
			return err
		}
		x.only = false
		for _, s := range x.segments {
			if s.contents == nil || !s.current {
				continue
			}
			store := s.contents.Store()
			if loaders[store] == nil {
				loaders[store] = store.Load(job)
			}
			loaders[store].Add(s.backupSpan(), s.contents)
		}
	}
	return nil
}

// shortage says how much memory a resume lacks.
func shortage(b *batch, made int, cause error) error {
	var had, need uint64
	for i, x := range b.extents {
		if i < made {
			had += x.size
		}
		need += x.size
	}
	free, err := b.device.free()
	if err != nil {
		return cause
	}
	return fmt.Errorf("device %d has %d bytes free and %d are needed; free memory there and call again: %w",
		b.device.ordinal, had+free, need, cause)
}

// begin marks the segments of a transition, and their extents, busy and returns them, grouped by device.
// What is to become of a segment is noted in its outcome meanwhile: others may read its state under the
// lock. It waits for frees in the same extents: one that fails must find its segment as it was.
func (e *Engine) begin(name *string, wanted func(*segment) bool) []*batch {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		batches := e.collect(name, wanted)
		if !claimed(batches) {
			for _, b := range batches {
				b.begin()
			}
			return batches
		}
		e.settled.Wait()
	}
}

func (e *Engine) collect(name *string, wanted func(*segment) bool) []*batch {
	var batches []*batch
	for _, d := range e.devices {
		b := &batch{device: d}
		for _, t := range d.tags {
			if name != nil && t.name != *name {
				continue
			}
			for _, s := range t.segments {
				if wanted(s) {
					b.segments = append(b.segments, s)
				}
			}
		}
		if len(b.segments) > 0 {
			b.sort()
			batches = append(batches, b)
		}
	}
	slices.SortFunc(batches, func(x, y *batch) int { return x.device.ordinal - y.device.ordinal })
	return batches
}

// sort puts the segments in order and lists their extents.
func (b *batch) sort() {
	slices.SortFunc(b.segments, func(x, y *segment) int { return cmp.Compare(x.address, y.address) })
	var last *extent
	for _, s := range b.segments {
		if s.extent != nil && s.extent != last {
			last = s.extent
			b.extents = append(b.extents, last)
		}
	}
}

func claimed(batches []*batch) bool {
	for _, b := range batches {
		for _, x := range b.extents {
			if x.claims > 0 || x.busy {
				return true
			}
		}
	}
	return false
}

func (b *batch) begin() {
	for _, s := range b.segments {
		s.busy = true
		s.outcome = outcome{s.state, s.kept}
	}
	for _, x := range b.extents {
		x.busy = true
	}
}

// gather plans extents for the segments that have none: one for neighbours of a tag, up to limit bytes.
func (b *batch) gather(limit uint64) {
	extents := b.extents[:0:0]
	var group []*segment
	var size uint64
	flush := func() {
		if len(group) > 0 {
			x := newExtent(b.device, group...)
			x.busy = true
			extents = append(extents, x)
			group, size = nil, 0
		}
	}
	for _, s := range b.segments {
		if s.extent != nil {
			flush()
			if last := len(extents) - 1; last < 0 || extents[last] != s.extent {
				extents = append(extents, s.extent)
			}
			continue
		}
		if n := len(group); n > 0 && (s.foreign != nil || group[0].foreign != nil || group[n-1].tag != s.tag || group[n-1].address+uintptr(group[n-1].length()) != s.address || size+s.length() > limit) {
			flush()
		}
		group = append(group, s)
		size += s.length()
	}
	flush()
	b.extents = extents
}

// end makes the outcome of each segment its state, lets what waited for the transition go on, and
// lets each tag note its time.
func (e *Engine) end(batches []*batch, note func(*tag)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range batches {
		noted := map[*tag]bool{}
		for _, s := range b.segments {
			s.busy = false
			s.state, s.kept = s.outcome.state, s.outcome.kept
			if !noted[s.tag] {
				noted[s.tag] = true
				note(s.tag)
			}
		}
		for _, x := range b.extents {
			x.busy = false
			if !x.created {
				e.dissolve(x)
				continue
			}
			for _, s := range x.segments {
				s.extent = x
			}
		}
	}
	e.settled.Broadcast()
}
