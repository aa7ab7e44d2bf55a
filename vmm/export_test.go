package vmm

// PausedAt reports whether the allocation at an address is paused, or lost its memory in a free that got half way. That
// memory may still be mapped after two failures.
func (e *Engine) PausedAt(address uintptr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.around(address).segment
	return s != nil && s.state == paused
}
