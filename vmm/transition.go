package vmm

import (
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
	Tag          *string // nil: every tag
	RetainBackup bool    // keep host copies after resume
	PoolBytes    uint64  // without retaining: keep so many bytes of pinned host memory for the next pause
	DiskDir      string  // where a pause puts files; "": the system's directory for temporary files
	DiskChunk    uint64  // bytes of one read or write
	Capturing    bool    // a stream of the process is being captured
}

// batch is a device's segments in a transition, by address.
type batch struct {
	device   *device
	segments []*segment
}

// Pause releases the physical memory of every active segment with the tag, on all devices, after
// saving the contents of those that have a backup. When it returns the memory is free for others.
//
// It is a transaction: wait for the devices; save contents; unmap all; release all. An error in
// one of the first three leaves every segment active; one while releasing leaves them paused, with
// the memory that was refused still held, and another Pause releases it.
// Errors: ErrCapturing, backup.ErrHostMemory, *cuda.Error. (cuMemUnmap, cuMemRelease)
func (e *Engine) Pause(o Options) error {
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
		return s.state == active || s.state == paused && s.extent.created
	})
	if len(batches) == 0 {
		return nil
	}
	err := guard.Call(func() error { return e.pause(batches) }) // whatever happens, end must follow
	e.end(batches, func(t *tag) {
		if err == nil {
			t.lastPause = time.Since(start).Seconds()
		}
	})
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

func (e *Engine) pause(batches []batch) error {
	for _, b := range batches {
		if err := b.device.synchronize(); err != nil {
			if captureForbids(err) {
				err = fmt.Errorf("%w: %w", ErrCapturing, err)
			}
			return err
		}
	}
	if err := parallel(batches, e.save); err != nil {
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
			if err := s.extent.release(b.device); err != nil && first == nil {
				first = fmt.Errorf("paused, but memory is still held; pause again to release it: %w", err)
			}
		}
	}
	return first
}

// parallel runs f for every device at once and returns the first error, after all have ended.
func parallel(batches []batch, f func(batch) error) error {
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
	}
	return nil
}

// save copies the contents of the active segments that have a backup.
func (e *Engine) save(b batch) error {
	for _, kind := range []BackupKind{BackupHost, BackupDisk} {
		var segments []*segment
		var spans []backup.Span
		var places []backup.Contents
		for _, s := range b.segments {
			if s.state == active && s.backup == kind {
				segments = append(segments, s)
				spans = append(spans, s.backupSpan())
				places = append(places, s.contents)
			}
		}
		if len(segments) == 0 {
			continue
		}
		saved, err := e.store(kind).Save(b.device.context, spans, places)
		if err != nil {
			return err
		}
		for i, s := range segments {
			s.outcome.kept = kept{saved[i], true}
		}
	}
	return nil
}

func (s *segment) backupSpan() backup.Span {
	return backup.Span{Address: s.address, Size: s.extent.size}
}

// dropSaved discards what a failed pause saved, but not what was kept from before, nor what a
// segment needs that is paused all the same because it could not be mapped again.
func dropSaved(batches []batch) {
	for _, b := range batches {
		for _, s := range b.segments {
			if s.outcome.state != active {
				continue
			}
			if s.outcome.contents != s.contents {
				s.outcome.contents.Discard()
			}
			s.outcome.kept = s.kept
			s.outcome.current = false // what was kept may have been overwritten in part
		}
	}
}

// unmap detaches all, or after an error maps again what it had detached. A segment that could not
// be mapped again is left paused, its memory still held, so nothing is lost.
func unmap(batches []batch) error {
	type unmapped struct {
		segment *segment
		device  *device
	}
	var undo []unmapped
	for _, b := range batches {
		for _, s := range b.segments {
			err := s.extent.detach(b.device)
			if err == nil {
				undo = append(undo, unmapped{s, b.device})
				continue
			}
			for _, u := range undo {
				if u.segment.state == active && u.segment.extent.attach(u.device) != nil {
					u.segment.outcome.state = paused
				}
			}
			return err
		}
	}
	return nil
}

// Resume gives every paused segment with the tag new memory at its old address, and its contents
// where they were kept.
//
// It is a transaction: create, map and refill all, then drop what was kept. After an error every
// segment is still paused with its contents, and nothing new is held.
// Errors: ErrCapturing, *cuda.Error with cuda.OutOfMemory when others hold the memory.
// (cuMemCreate, cuMemMap, cuMemSetAccess)
func (e *Engine) Resume(o Options) error {
	if o.Capturing {
		return fmt.Errorf("resume: %w", ErrCapturing)
	}
	e.transition.Lock()
	defer e.transition.Unlock()
	start := time.Now()
	e.FreeDeferred()
	batches := e.begin(o.Tag, func(s *segment) bool { return s.state == paused })
	if len(batches) == 0 {
		return nil
	}
	err := guard.Call(func() error { return e.resume(batches, o) })
	e.end(batches, func(t *tag) {
		if err == nil {
			t.lastResume = time.Since(start).Seconds()
		}
	})
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}

func (e *Engine) resume(batches []batch, o Options) error {
	if err := parallel(batches, e.restore); err != nil {
		for _, b := range batches {
			for _, s := range b.segments {
				// A second failure leaves a step undone; the extent knows, and the next
				// resume, pause or free goes on from there.
				_ = s.extent.unmake(b.device)
			}
		}
		return err
	}
	room := o.PoolBytes
	for _, b := range batches {
		for _, s := range b.segments {
			s.outcome.state = active
			switch {
			case s.contents == nil || o.RetainBackup && s.contents.Host() != 0:
			case s.contents.Host() != 0 && s.contents.Bytes() <= room:
				room -= s.contents.Bytes()
				s.outcome.current = false
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
func (e *Engine) restore(b batch) (err error) {
	loaders := map[BackupKind]backup.Loader{}
	defer func() {
		for _, l := range loaders {
			if waited := l.Wait(); err == nil {
				err = waited
			}
		}
	}()
	for i, s := range b.segments {
		if err := s.extent.create(b.device); err != nil {
			if errors.Is(err, cuda.OutOfMemory) {
				err = shortage(b, i, err)
			}
			return err
		}
		if err := s.extent.attach(b.device); err != nil {
			return err
		}
		if s.contents == nil || !s.current {
			continue
		}
		if loaders[s.backup] == nil {
			loaders[s.backup] = e.store(s.backup).Load(b.device.context)
		}
		loaders[s.backup].Add(s.backupSpan(), s.contents)
	}
	return nil
}

// shortage says how much memory a resume lacks.
func shortage(b batch, made int, cause error) error {
	var had, need uint64
	for i, s := range b.segments {
		if i < made {
			had += s.extent.size
		}
		need += s.extent.size
	}
	free, err := b.device.free()
	if err != nil {
		return cause
	}
	return fmt.Errorf("device %d has %d bytes free and %d are needed; free memory there and call again: %w",
		b.device.ordinal, had+free, need, cause)
}

// begin marks the segments of a transition busy and returns them, grouped by device. What is to
// become of a segment is noted in its outcome meanwhile: others may read its state under the lock.
func (e *Engine) begin(name *string, wanted func(*segment) bool) []batch {
	e.mu.Lock()
	defer e.mu.Unlock()
	var batches []batch
	for _, d := range e.devices {
		b := batch{device: d}
		for _, t := range d.tags {
			if name != nil && t.name != *name {
				continue
			}
			for _, s := range t.segments {
				if wanted(s) {
					s.busy = true
					s.outcome = outcome{s.state, s.kept}
					b.segments = append(b.segments, s)
				}
			}
		}
		if len(b.segments) > 0 {
			slices.SortFunc(b.segments, func(x, y *segment) int {
				if x.address < y.address {
					return -1
				}
				return 1
			})
			batches = append(batches, b)
		}
	}
	slices.SortFunc(batches, func(x, y batch) int { return x.device.ordinal - y.device.ordinal })
	return batches
}

// end makes the outcome of each segment its state, lets what waited for the transition go on, and
// lets each tag note its time.
func (e *Engine) end(batches []batch, note func(*tag)) {
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
	}
	e.settled.Broadcast()
}
