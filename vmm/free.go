package vmm

import (
	"errors"
	"fmt"

	"tms/vmm/cuda"
)

// allocation is what a caller of Malloc holds: a segment, or a block of one.
type allocation struct {
	segment *segment
	small   bool    // a part of it:
	first   int     // the first unit of that
	extent  *extent // that the free has a claim on; nil: none
	late    bool    // the caller was told that it is done
}

// Free ends an allocation, on the calling thread, after the device has finished with it. While a
// stream is being captured nothing may wait, so then the free is made later, by FreeDeferred.
// After any other error the allocation is still there, and the free can be tried again.
// Errors: ErrInvalidAddress, *cuda.Error. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Free(address uintptr, capturing bool) (err error) {
	defer e.audit(&err)
	e.mu.Lock()
	a, err := e.claim(address)
	mapped := err == nil && a.segment.mapped()
	if mapped && capturing {
		a = e.unclaim(a)
		a.late = true
		e.deferred = append(e.deferred, a)
		e.mu.Unlock()
		return nil
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if mapped {
		err = a.segment.device.synchronize()
	}
	return e.free(a, err)
}

// claim marks the allocation at an address as being freed, once no pause or resume works on it.
func (e *Engine) claim(address uintptr) (allocation, error) {
	for {
		a := e.around(address)
		s := a.segment
		if s == nil || a.address() != address || s.foreign != nil {
			return allocation{}, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
		}
		if s.busy {
			e.settled.Wait()
			continue
		}
		if a.small {
			s.shared.setFreeing(a.first, true)
		} else {
			s.state = freeing
		}
		a.extent = s.extent
		if a.extent != nil {
			a.extent.claims++
		}
		return a, nil
	}
}

// unclaim lets transitions have the extent of an allocation: it has gone, is live again, or its free
// has become a late one, of which the caller was told that it has succeeded.
func (e *Engine) unclaim(a allocation) allocation {
	if a.extent != nil {
		a.extent.claims--
		e.settled.Broadcast()
	}
	a.extent = nil
	return a
}

// find returns the segment of a granule. The caller holds e.mu.
func (e *Engine) find(address uintptr) *segment {
	for _, a := range e.arenas {
		if a.contains(address) {
			return a.find(address)
		}
	}
	return e.overlapping(address, 1)
}

// idle waits until the device has finished with a segment.
func (e *Engine) idle(s *segment) error {
	e.mu.Lock()
	mapped := s.mapped()
	e.mu.Unlock()
	if mapped {
		return s.device.synchronize()
	}
	return nil
}

// free ends a claimed allocation that the device is done with, or takes the claim back if waiting for the
// device has failed. A late one stays deferred when it fails.
func (e *Engine) free(a allocation, waited error) error {
	err := waited
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		err = e.drop(a)
	}
	a = e.unclaim(a)
	switch {
	case err == nil:
		return nil
	case a.late:
		e.deferred = append(e.deferred, a)
		return err
	case captureForbids(err):
		// A capture that the seam did not see begin: the free waits for its end all the same.
		a.late = true
		e.deferred = append(e.deferred, a)
		return nil
	}
	a.reinstate()
	return fmt.Errorf("freeing %#x: %w", a.address(), err)
}

func (a allocation) address() uintptr { return a.segment.address + uintptr(a.first)*unit }

// size is in bytes as asked for.
func (a allocation) size() uint64 {
	if a.small {
		return a.segment.shared.size(a.first)
	}
	return a.segment.size
}

// reinstate makes an allocation live again that could not be freed.
func (a allocation) reinstate() {
	switch {
	case !a.small:
		a.segment.reinstate()
	case a.segment.shared != nil: // no reset of the device took all of it meanwhile
		a.segment.shared.setFreeing(a.first, false)
	}
}

func (s *segment) reinstate() {
	s.state = active
	if s.extent == nil || !s.extent.open {
		s.state = paused // its memory is out of reach already; what is left goes at the next try
	}
}

// drop ends a claimed allocation that the device is done with. The caller holds e.mu, which is let go
// for driver calls. After an error the segment, or block, is still there and claimed.
func (e *Engine) drop(a allocation) error {
	s := a.segment
	if a.small && s.shared == nil {
		return nil // a reset of the device took all of it
	}
	if a.small {
		for s.shared != nil && s.busy && s.shared.live == 1 {
			e.settled.Wait()
		}
		if s.shared == nil {
			return nil // meanwhile
		}
		if s.shared.live > 1 {
			s.shared.remove(a.first)
			s.tag.listSmall(s)
			return nil
		}
		s.state = freeing // nothing else is in it
		s.tag.unlistSmall(s)
	}
	for s.extent != nil && s.extent.busy {
		e.settled.Wait()
	}
	if x := s.extent; x != nil && x.live > 1 {
		x.live--
		e.forget(s)
		s.tag.addSlack(s)
		return nil
	} else if x != nil {
		if err := e.engage([]*segment{s}, x.unmake); err != nil {
			if a.small {
				s.reinstate()
				s.tag.listSmall(s)
			}
			return err
		}
		e.dissolve(x)
	}
	e.forget(s)
	e.vacate(s)
	return nil
}

// forget takes a segment out of what can be found, paused or resumed.
func (e *Engine) forget(s *segment) {
	s.place.enter(s.span, nil)
	s.tag.remove(s)
	s.discard()
	s.shared = nil
}

// dissolve parts the segments from an extent that is nothing any more; what was slack has gone with it.
func (e *Engine) dissolve(x *extent) {
	for _, s := range x.segments {
		s.extent = nil
		if s.state == slack {
			s.tag.removeSlack(s)
			e.vacate(s)
		}
	}
}

func captureForbids(err error) bool {
	return errors.Is(err, cuda.StreamCaptureUnsupported) || errors.Is(err, cuda.StreamCaptureImplicit)
}

// FreeDeferred makes the frees that a stream capture, or the driver, held up and returns how many succeeded.
// The others stay, for the next time.
func (e *Engine) FreeDeferred() int {
	e.mu.Lock()
	waiting := e.deferred
	e.deferred = nil
	e.mu.Unlock()
	done := e.buryLate()
	for _, a := range waiting {
		if e.free(a, e.idle(a.segment)) == nil {
			done++
		}
	}
	return done
}
