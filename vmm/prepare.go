package vmm

import (
	"fmt"

	"tms/vmm/backup"
)

// Prepare begins to pin host memory ahead for the active segments with the tag (nil: every tag) that have a
// host backup, so that their next pause runs at the speed of the link, and returns at once. What finish does
// is the work; it must be called, on any thread. A pause, resume or trim that comes after Prepare waits for it.
// Errors of finish: backup.ErrHostMemory, *cuda.Error; nothing is then held. (cuMemHostRegister)
func (e *Engine) Prepare(name *string) (finish func() error) {
	ticket := e.transition.ask()
	return func() (err error) {
		defer e.audit(&err)
		e.transition.await(ticket)
		defer e.transition.Unlock()
		return e.prepare(name)
	}
}

func (e *Engine) prepare(name *string) error {
	wants := func(s *segment) bool {
		return s.is(active) && s.backup == BackupHost && s.contents == nil && !s.stays()
	}
	var prepared []*segment
	for device, segments := range e.choose(name, wants) {
		segments, spans := e.spans(segments, wants)
		contents, err := e.host.Prepare(device.job(), spans)
		if err != nil {
			e.unprepare(prepared)
			return fmt.Errorf("prepare: %w", err)
		}
		e.mu.Lock()
		for i, s := range segments {
			if wants(s) { // it may have been freed meanwhile
				s.contents = contents[i]
				prepared = append(prepared, s)
			} else {
				contents[i].Discard()
			}
		}
		e.mu.Unlock()
	}
	return nil
}

// unprepare takes back what was pinned for segments that still are as Prepare found them.
func (e *Engine) unprepare(segments []*segment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range segments {
		if s.is(active) && s.contents != nil {
			s.discard()
		}
	}
}

// Trim gives back host memory that holds nothing a paused segment needs: pinned ahead, kept for the
// next pause, retained after a resume. It returns when the operating system has it.
func (e *Engine) Trim() {
	defer e.auditQuietly()
	e.transition.Lock()
	defer e.transition.Unlock()
	holds := func(s *segment) bool { return s.is(active) && s.contents != nil }
	for _, segments := range e.choose(nil, holds) {
		e.mu.Lock()
		for _, s := range segments {
			if holds(s) {
				s.discard()
			}
		}
		e.mu.Unlock()
	}
	for _, d := range e.known() {
		if d.hashed.Load() {
			e.hasher.Trim(d.context)
		}
	}
	e.driver.Reclaim.Drain()
}

// spans returns those of the segments that are still wanted, and where they are: the place of one that has
// been freed says nothing.
func (e *Engine) spans(segments []*segment, wanted func(*segment) bool) (still []*segment, spans []backup.Span) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range segments {
		if wanted(s) {
			still, spans = append(still, s), append(spans, s.backupSpan())
		}
	}
	return still, spans
}

// choose is matching for those that do not hold e.mu, and claim nothing: the segments may go at any time.
func (e *Engine) choose(name *string, wanted func(*segment) bool) map[*device][]*segment {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.matching(name, wanted)
}
