package vmm

import (
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// Live says which bytes of size bytes at an address have contents that the next pause is to keep; the others are
// unspecified after the resume. The ranges may be in any order. It counts for that pause alone, even if the pause
// fails, so that no byte is lost which the program uses later. It replaces what an earlier call said about the same
// bytes. It affects only memory whose contents go to host memory. Errors: cuda.InvalidValue where some of the bytes are
// in no segment, or in a paused one, or a range is beyond them.
func (e *Engine) Live(address uintptr, size uint64, live []store.Range) error {
	for _, r := range live {
		if r.Offset > size || r.Size > size-r.Offset {
			return cuda.Refuse(cuda.InvalidValue, "the live range of %d bytes at offset %d reaches past the %d bytes "+
				"at %#x", r.Size, r.Offset, size, address)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	segments, err := e.across(address, size)
	if err != nil {
		return err
	}
	joined := store.Union(live)
	for _, s := range segments {
		if s.slab != nil || s.backup == BackupDisk || s.backup == BackupPeer {
			continue // BackupNone counts: a pause with SaveAll saves it in host memory
		}
		begin, end := max(address, s.address), min(address+uintptr(size), s.address+uintptr(s.length()))
		dead := store.Ranges{{Offset: uint64(begin - address), Size: uint64(end - begin)}}.Without(joined)
		for i := range dead {
			dead[i].Offset -= uint64(s.address - address) // which may be below 0, and wrap
		}
		about := store.Range{Offset: uint64(begin - s.address), Size: uint64(end - begin)}
		s.dead = s.dead.Replace(about, dead)
	}
	return nil
}

// across lists the segments that size bytes at an address lie in, none of which a transition works on. The caller holds
// e.mu.
func (e *Engine) across(address uintptr, size uint64) (segments []*segment, err error) {
	for at := address; uint64(at-address) < size; {
		s := e.segmentAt(at)
		if s != nil && s.owner == aTransition {
			e.settled.Wait()
			segments, at = nil, address
			continue
		}
		switch {
		case s == nil || s.owner == aFree:
			return nil, cuda.Refuse(cuda.InvalidValue, "%#x, of %d bytes at %#x, is in no region", at, size, address)
		case s.state != active:
			return nil, cuda.Refuse(cuda.InvalidValue, "%#x is paused: say what is live before a pause", at)
		}
		segments, at = append(segments, s), s.address+uintptr(s.length())
	}
	return segments, nil
}

// ForgetLive ends what Live has said about segments with the tags (nil: every tag).
func (e *Engine) ForgetLive(tags []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.visit(tags, func(_ *device, s *segment) int {
		if s.owner != aTransition { // else its end forgets it
			s.dead = nil
		}
		return 1
	})
}
