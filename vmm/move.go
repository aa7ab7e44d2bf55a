package vmm

import (
	"fmt"
	"time"

	"tms/vmm/store"
)

// Move moves the contents of paused segments with the tags from host memory to files, or from there back to pinned host
// memory, and returns how many bytes that was. The segments stay paused. Contents of BackupDisk stay in files, those in
// the memory of another device or in reserved host memory stay there, and so do those that have only parts of a
// segment. When Move returns, the contents' former place is free.
//
// It is a transaction: after an error all contents are where they were. Errors: store.ErrHostMemory, store.ErrDisk,
// store.ErrContentsLost, *cuda.Error. (cuMemHostRegister, where they go to host memory; cuMemHostUnregister)
func (e *Engine) Move(options Options, to BackupKind) (moved uint64, err error) {
	defer e.audit(&err)
	o := e.begun("move", options)
	defer e.over(o, &moved, &err)
	from := store.Store(e.host)
	switch to {
	case BackupHost:
		from = e.disk
	case BackupDisk:
	default:
		return 0, fmt.Errorf("move: contents can go to host memory or to disk")
	}
	if moved, err = e.move(o, from, to); err != nil {
		return 0, fmt.Errorf("move: %w", err)
	}
	o.discarded.await(&o.spent)
	return moved, nil
}

// own moves the contents of a tag from reserved host memory, which has no address here, to the process's own.
func (e *Engine) own(tag string) (moved uint64, err error) {
	o := e.begun("move", Options{Tags: []string{tag}})
	defer e.over(o, &moved, &err)
	return e.move(o, e.peer, BackupHost)
}

func (e *Engine) move(o *operation, from store.Store, to BackupKind) (moved uint64, err error) {
	wanted := func(s *segment) bool {
		return s.is(paused) && s.current && s.contents != nil && s.contents.Store() == from &&
			(from != e.peer || store.IsReserved(s.contents)) &&
			(to == BackupDisk && s.contents.Host() != 0 || to == BackupHost && s.backup != BackupDisk)
	}
	err = e.transact("move", o, wanted, func(batches []*batch) error {
		defer o.spent.copyingSince(time.Now())
		if to == BackupDisk {
			if err := e.disk.Configure(o.DiskDir, o.DiskSetting); err != nil {
				return err
			}
		}
		var items []store.Item // for host memory
		for _, b := range batches {
			b.items = map[BackupKind][]store.Item{}
			for _, s := range b.segments {
				b.items[to] = append(b.items[to], store.Item{Span: s.backupSpan()})
			}
			items = append(items, b.items[BackupHost]...)
		}
		if err := e.host.Check(batches[0].job.Budget, items); err != nil {
			return err
		}
		if err := parallel(batches, func(b *batch) error { return e.moveBatch(b, to) }); err != nil {
			for _, b := range batches {
				for _, s := range b.segments {
					if s.outcome.contents != s.contents {
						s.outcome.contents.Discard()
						s.outcome.contents = s.contents
					}
				}
			}
			return err
		}
		for _, b := range batches {
			for _, s := range b.segments {
				moved += s.contents.Bytes()
				o.discarded.add(s.contents, true)
				s.contents.Discard()
			}
		}
		return nil
	}, func(*tag) {})
	return moved, err
}

// moveBatch copies contents; the outcomes get the copies, and the segments keep what they have.
func (e *Engine) moveBatch(b *batch, to BackupKind) error {
	contents := make([]store.Contents, len(b.segments))
	total := uint64(0)
	for i, s := range b.segments {
		contents[i] = s.contents
		total += s.contents.Bytes()
	}
	b.progress.total.Store(total)
	var copies []store.Contents
	var err error
	if to == BackupDisk {
		copies, err = e.disk.Take(b.job, contents)
	} else if copies, err = e.host.Save(b.job, b.items[to]); err == nil {
		from := contents[0].Store().(store.Held)
		if err = from.Give(b.job, contents, copies); err != nil {
			for _, c := range copies {
				c.Discard()
			}
		}
	}
	if err != nil {
		return err
	}
	for i, s := range b.segments {
		s.outcome.contents = copies[i]
	}
	return nil
}
