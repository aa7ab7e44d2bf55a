package vmm

import (
	"fmt"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// Spill moves the contents of paused segments with the tags from host memory to files, and returns how many bytes that
// was. The segments stay paused. Contents in the memory of another device or in reserved host memory stay there, and so
// do those that have only parts of a segment. When Spill returns, the contents' former place is free.
//
// It is a transaction: after an error all contents are where they were. Errors: store.ErrHostMemory, store.ErrDisk,
// store.ErrContentsLost, *cuda.Error. (cuMemHostUnregister)
//
// With ToMemory the files are host memory, and all contents go there, because a snapshot takes nothing else: those that
// have only parts, and those in reserved host memory, too. Contents in the memory of another device are refused.
func (e *Engine) Spill(options Options) (spilled uint64, err error) {
	if !options.ToMemory {
		return e.move(options, e.host, BackupDisk)
	}
	if _, err = e.move(options, e.peer, BackupHost); err != nil { // of these, only reserved memory's
		return 0, err
	}
	if spilled, err = e.move(options, e.host, backupMemory); err == nil {
		err = e.onlyInFiles(options.Tags)
	}
	return spilled, err
}

// onlyInFiles refuses paused contents that are elsewhere.
func (e *Engine) onlyInFiles(tags []string) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.visit(tags, func(_ *device, s *segment) int {
		if s.is(paused) && s.current && s.contents != nil && err == nil {
			if in := s.contents.Store(); in != store.Store(e.disk) && in != store.Store(e.memory) {
				err = cuda.Refuse(cuda.IllegalState, "contents of tag %q wait in the memory of another device, and a snapshot "+
					"takes files alone: resume the tag first", s.tag.name)
			}
		}
		return 1
	})
	return err
}

// Fetch moves contents from files back to pinned host memory, as Spill moves them there. Contents of BackupDisk stay in
// files. (cuMemHostRegister)
func (e *Engine) Fetch(options Options) (fetched uint64, err error) {
	return e.move(options, e.disk, BackupHost)
}

// move is what an observer of Spill and of Fetch sees.
func (e *Engine) move(options Options, from store.Store, to BackupKind) (moved uint64, err error) {
	defer e.audit(&err)
	o := e.begun("move", options)
	defer e.over(o, &moved, &err)
	if moved, err = e.carry(o, from, to); err != nil {
		return 0, fmt.Errorf("move: %w", err)
	}
	o.spent.waited += o.discarded.Await()
	return moved, nil
}

// fetchReserved moves the contents of a tag from reserved host memory, which has no address here, to the process's own.
func (e *Engine) fetchReserved(tag string) (moved uint64, err error) {
	o := e.begun("move", Options{Tags: []string{tag}})
	defer e.over(o, &moved, &err)
	return e.carry(o, e.peer, BackupHost)
}

// carry moves contents from a store to files or to host memory.
func (e *Engine) carry(o *operation, from store.Store, to BackupKind) (moved uint64, err error) {
	wanted := func(s *segment) bool {
		return s.is(paused) && s.current && s.contents != nil && s.contents.Store() == from &&
			(from != e.peer || store.IsReserved(s.contents)) &&
			(to == backupMemory || to == BackupDisk && s.contents.Host() != 0 || to == BackupHost && s.backup != BackupDisk)
	}
	err = e.transact("move", o, wanted, func(batches []*batch) error {
		start := time.Now()
		defer func() { batches[0].copying = time.Since(start) }() // of all together
		if to == BackupDisk {
			if err := e.disk.Configure(o.DiskDir, o.DiskSetting); err != nil {
				return err
			}
		}
		var items []store.Item // for host memory
		for _, b := range batches {
			for _, s := range b.segments {
				b.rest.add(to, s, store.Item{Span: s.backupSpan()})
			}
			items = append(items, b.rest.items[BackupHost]...)
		}
		if err := e.host.Check(batches[0].job.Budget, items); err != nil {
			return err
		}
		if err := guard.All(batches, func(b *batch) error { return e.carryBatch(b, to) }); err != nil {
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
				o.discarded.Add(s.contents, true)
				s.contents.Discard()
			}
		}
		return nil
	}, func(*tag) {})
	return moved, err
}

// carryBatch copies contents; the outcomes get the copies, and the segments keep what they have.
func (e *Engine) carryBatch(b *batch, to BackupKind) error {
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
	} else if to == backupMemory {
		copies, err = e.memory.Take(b.job, contents)
	} else if copies, err = e.host.Save(b.job, b.rest.items[to]); err == nil {
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
