package vmm

import (
	"slices"

	"tms/vmm/cuda"
)

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
		_ = e.quiesce(d)
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
// current.
func (e *Engine) dropDevice(d *device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.devices, d.ordinal)
	var segments, mapped []*segment
	var p pace
	for _, t := range d.tags {
		t.visit(e, &p, func(s *segment) int {
			switch {
			case s.isUserMapped():
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

// dropOrPutOff ends a segment that the caller has marked as being freed; what the driver refuses is done later. The
// caller holds e.mu, which is released for driver calls.
func (e *Engine) dropOrPutOff(s *segment) {
	a := allocation{segment: s}
	if err := e.drop(a); err != nil {
		e.putOff(pendingFree{allocation: a, stage: refused, why: refusedPrefix + err.Error()})
	}
}

// errReset is for a device that was reset while memory of it was being made. No call would find that memory.
var errReset = cuda.Refuse(cuda.NotReady, "the device was reset during the call; call again")

// current returns errReset for a device that a reset has dropped. The caller holds e.mu.
func (e *Engine) current(d *device) error {
	if e.devices[d.ordinal] != d {
		return errReset
	}
	return nil
}

// relocate gives user-mapped memory that is in no tag, and whose device was reset since it was made, to that device's
// successor. The caller holds e.mu.
func (e *Engine) relocate(s *segment) {
	d, err := e.device(s.device.ordinal)
	if err != nil || d == s.device {
		return // without the device there are no pauses either
	}
	if !s.isImported() {
		s.device.has -= s.userMapped.size
		d.gain(s.userMapped.size)
	}
	if s.device = d; s.extent != nil {
		s.extent.device = d
	}
}
