package vmm

import (
	"fmt"

	"tms/vmm/cuda"
	"tms/vmm/mapping"
)

// User-mapped memory that processes share: this file names the program's own for other processes, and takes theirs by
// handle. The rest is as with segments of Malloc (share.go, import.go). But an import has memory even while it is not
// mapped, and a pause gives that up, so the import belongs to its tag until the program releases it.

// Name names the memory behind a handle of Create, or of Import, for other processes, and returns its
// size in bytes. Share.PID is 0 for this process's own. Errors: ErrNotOurs, ErrNotShareable: the memory, or the
// engine, was not made for that.
func (m UserMapped) Name(handle cuda.Handle) (share Share, size uint64, err error) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.byHandle(handle)
	switch {
	case err != nil:
		return share, 0, err
	case s.imported != nil:
		return s.imported.share, s.userMapped.size, nil
	case !e.shareable || !s.userMapped.prop.IsFile():
		return share, 0, ErrNotShareable
	}
	return Share{ID: e.sharing.name(s)}, s.userMapped.size, nil
}

// RetainNamed is Import of the process's own memory: its handle, once more. Errors: ErrShareGone.
func (m UserMapped) RetainNamed(id uint64) (cuda.Handle, error) {
	e := m.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sharing.shares[id]
	for s != nil && s.userMapped != nil && !s.settled() { // it may be about to be released
		e.settled.Wait()
		s = e.sharing.shares[id]
	}
	if s == nil || s.userMapped == nil {
		return 0, ErrShareGone
	}
	s.userMapped.references++
	return s.userMapped.handle, nil
}

// Import takes another process's memory, for the program to map, under a new handle of the engine's. It belongs
// to the tag that it has there, and to the device by which the program uses it: a pause waits for that device. Errors:
// ErrShareGone, ErrSharePaused, *cuda.Error. (cuMemImportFromShareableHandle)
func (m UserMapped) Import(ordinal int, share Share) (made cuda.Handle, err error) {
	e := m.engine
	defer e.audit(&err)
	e.mu.Lock()
	defer e.mu.Unlock()
	before, err := e.device(ordinal)
	if err != nil {
		return 0, err
	}
	i := &imported{engine: e, share: share}
	b, err := i.open()
	if err != nil {
		return 0, err
	}
	d, err := e.device(ordinal) // once more: a reset may have come during open
	if err != nil {
		_ = e.unlocked(func() error { i.end(before, b); return nil })
		return 0, err
	}
	export := b.export
	s := &segment{size: export.Size, device: d, backing: backing{&userMapped{size: export.Size, references: 1}, i}}
	x := newExtent(s)
	x.Handle, x.Step = b.handle, mapping.Created
	if export.Size%d.granularity != 0 || export.Extent != export.Size {
		_ = e.unlocked(func() error { x.Drop(); return nil })
		return 0, fmt.Errorf("process %[2]d shares no whole granules, but %[1]d bytes%.0[3]w", export.Size, share.PID,
			cuda.InvalidValue)
	}
	s.extent = x
	e.names.Note(export.Tag)
	d.tag(export.Tag).add(s)
	e.assignHandle(s)
	e.sharing.imports[i.key(s)] = s
	return s.userMapped.handle, nil
}

// assignHandle gives user-mapped memory its handle. The caller holds e.mu.
func (e *Engine) assignHandle(s *segment) {
	e.userMapped.made++
	s.userMapped.handle = handlePrefix<<handleShift | cuda.Handle(e.userMapped.made)
	e.userMapped.known[s.userMapped.handle] = s
}
