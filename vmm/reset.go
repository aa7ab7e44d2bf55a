package vmm

import "slices"

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
	_ = e.freeQuiesced([]*device{d}, false, func() error {
		// Work in flight dies with the context; a device that cannot be waited for is still reset.
		_ = e.contexts.Finish(d.ordinal)
		return nil
	})
	e.transition.Lock()
	defer e.transition.Unlock()
	e.dropDevice(d)
	e.hasher.Forget(d.context)
	e.driver.Reclaim.Drain() // unpinning needs the context
	e.driver.Reclaim.Forget(uintptr(d.context))
}

// dropDevice forgets a device, and drops all of its memory. Calls that are making memory of it find that out: see
// enter.
func (e *Engine) dropDevice(d *device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.devices, d.ordinal)
	var segments, mapped []*segment
	var p pace
	for _, t := range d.tags {
		t.visit(e, &p, func(s *segment) int {
			switch {
			case s.userMapped != nil:
				mapped = append(mapped, s)
			case s.owner != aFree:
				s.owner = aFree
				segments = append(segments, s)
			}
			return 1
		})
	}
	for _, s := range segments {
		p.yield(e, 1)
		e.dropOrPutOff(s)
	}
	slices.Reverse(mapped) // as they were made
	for _, s := range mapped {
		e.dropAtReset(s)
	}
	// The work that they wait for ends with the context.
	e.waited(e.pendingOf(func(of *device) bool { return of == d }), nil)
	e.tellPaused()
}

// relocate gives user-mapped memory that is in no tag, and whose device was reset since it was made, to that device's
// successor. The caller holds e.mu.
func (e *Engine) relocate(s *segment) {
	d, err := e.device(s.device.ordinal)
	if err != nil || d == s.device {
		return // without the device there are no pauses either
	}
	if s.imported == nil {
		s.device.quota.Has -= s.userMapped.size
		d.quota.Gain(s.userMapped.size)
	}
	if s.device = d; s.extent != nil {
		s.extent.device = d
	}
}
