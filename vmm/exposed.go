package vmm

// Memory is exposed while a pause that is not gated keeps it: nothing holds the program from a call that names the
// addresses, where nothing is mapped.

// Exposed returns the tag of the memory at an address, if that is exposed.
func (e *Engine) Exposed(address uintptr) (name string, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.segmentAt(address); s != nil && s.exposed {
		return s.tag.name, true
	}
	return "", false
}

// expose notes whether a segment is exposed. The caller holds the engine's lock.
func (s *segment) expose(now bool) {
	switch {
	case now && !s.exposed:
		s.device.exposed++
	case !now && s.exposed:
		s.device.exposed--
	}
	s.exposed = now
}
