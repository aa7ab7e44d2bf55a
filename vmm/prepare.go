package vmm

import (
	"fmt"

	"tms/vmm/store"
)

// Prepare takes a turn to pin host memory for the active segments with the tags (nil: every tag) that have a host
// backup, so that their next pause runs at the speed of the link. It returns at once; the caller must call finish, on
// any thread, which does the work. A pause, resume or trim that comes after Prepare waits for it. Errors of finish:
// store.ErrHostMemory, *cuda.Error; nothing is then held. (cuMemHostRegister)
func (e *Engine) Prepare(tags []string) (finish func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.preparing++
	return func() (err error) {
		defer e.audit(&err)
		e.transition.Lock()
		defer func() {
			e.transition.Unlock()
			e.mu.Lock()
			defer e.mu.Unlock()
			e.preparing--
			e.settled.Broadcast()
		}()
		return e.prepare(tags)
	}
}

func (e *Engine) prepare(tags []string) error {
	wants := func(s *segment) bool {
		return s.pausable() && s.backup == BackupHost && s.contents == nil && !s.sparse
	}
	var prepared []*segment
	for _, d := range e.known() {
		var items []store.Item // without a part to copy
		var segments []*segment
		var p pace
		chosen := e.choose(tags, func(s *segment) bool { return s.device == d && wants(s) })
		e.mu.Lock()
		for _, s := range chosen {
			if p.yield(e, 1); !wants(s) || !s.listed {
				continue
			}
			segments = append(segments, s)
			item := store.Item{Span: s.backupSpan()}
			if s.dead != nil {
				item.Sparse, item.Room = true, s.all().Without(s.dead).Bytes()
			}
			items = append(items, item)
		}
		e.mu.Unlock()
		if len(items) == 0 {
			continue
		}
		job := d.job()
		job.Budget = &store.Budget{Ledger: e.ledger}
		contents, err := e.host.Save(job, items)
		job.Budget.End()
		e.mu.Lock()
		for i := range contents {
			p.yield(e, 1)
			if s := segments[i]; wants(s) && s.backupSpan() == items[i].Span { // it may have been freed, and used again
				if s.contents = contents[i]; items[i].Sparse {
					s.parts = &parts{}
				}
				prepared = append(prepared, s)
			} else {
				contents[i].Discard()
			}
		}
		if err != nil {
			for _, s := range prepared {
				if p.yield(e, 1); s.is(active) {
					s.discard()
				}
			}
		}
		e.mu.Unlock()
		if err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	return nil
}

// Trim gives back host memory that no paused segment needs: pinned ahead, or retained after a resume. It returns when
// the operating system has it.
func (e *Engine) Trim() {
	defer e.auditQuietly()
	e.takeTurn()
	defer e.transition.Unlock()
	var p pace
	e.mu.Lock()
	e.visit(nil, func(_ *device, s *segment) int {
		if s.is(active) {
			s.discard()
		}
		return 1
	})
	e.pollAll()
	e.giveBackIdle(func(*device, *pendingFree) (uint64, bool) { return 0, true })
	for _, d := range e.devices {
		for _, t := range d.tags {
			p.yield(e, 1+len(t.lines))
			d.dropLines(t)
		}
	}
	e.dropUnused()
	e.mu.Unlock()
	for _, d := range e.known() {
		if d.hashed.Load() {
			e.hasher.Trim(d.context)
		}
	}
	e.driver.Reclaim.Drain()
}
