package vmm

// Reset drops all of a device's memory and contents before its primary context is reset. The addresses stay reserved,
// and the device can be used again. (cudaDeviceReset)
func (e *Engine) Reset(ordinal int) {
	defer e.auditQuietly()
	e.mu.Lock()
	d := e.devices[ordinal]
	e.mu.Unlock()
	if d == nil {
		return
	}
	_ = e.freeQuiesced([]*device{d}, func() error {
		// Work in flight dies with the context; a device that cannot be waited for is reset all the same.
		_ = e.quiesce(d)
		return nil
	})
	e.transition.Lock()
	defer e.transition.Unlock()
	e.mu.Lock()
	delete(e.devices, ordinal)
	var segments, mapped []*segment
	for _, t := range d.tags {
		for _, s := range t.segments {
			switch {
			case s.isUserMapped():
				mapped = append(mapped, s)
			case s.owner != aFree:
				s.owner = aFree
				segments = append(segments, s)
			}
		}
	}
	for _, s := range segments {
		a := allocation{segment: s}
		if err := e.drop(a); err != nil {
			e.putOff(pendingFree{allocation: a, stage: refused, why: refusedPrefix + err.Error()})
		}
	}
	for _, s := range mapped {
		e.dropAtReset(s)
	}
	e.tellUngated()
	e.mu.Unlock()
	e.hasher.Forget(d.context)
	e.driver.Reclaim.Drain() // unpinning needs the context
	e.driver.Reclaim.Forget(uintptr(d.context))
}
