package vmm

import (
	"errors"
	"fmt"

	"tms/vmm/cuda"
)

// Free ends a segment, on the calling thread, after the device has finished with it. While a
// stream is being captured nothing may wait, so then the free is made later, by FreeDeferred.
// After any other error the segment is still there, and the free can be tried again.
// Errors: ErrInvalidAddress, *cuda.Error. (cuCtxSynchronize, cuMemUnmap, cuMemRelease)
func (e *Engine) Free(address uintptr, capturing bool) error {
	e.mu.Lock()
	s, err := e.claim(address)
	if err == nil && capturing && s.extent.mapped {
		e.deferred = append(e.deferred, s)
		s = nil
	}
	e.mu.Unlock()
	if err != nil || s == nil {
		return err
	}
	return e.free(s, false, e.dismantle)
}

// claim marks the segment at an address as being freed, once no pause or resume works on it.
func (e *Engine) claim(address uintptr) (*segment, error) {
	for {
		s := e.find(address)
		if s == nil || s.address != address || !s.busy && s.state == freeing {
			return nil, fmt.Errorf("%w: %#x", ErrInvalidAddress, address)
		}
		if !s.busy {
			s.state = freeing
			return s, nil
		}
		e.settled.Wait()
	}
}

func (e *Engine) find(address uintptr) *segment {
	for _, a := range e.arenas {
		if a.contains(address) {
			return a.find(address)
		}
	}
	return nil
}

// free takes a claimed segment apart with dismantle. A free that the caller was already told has
// succeeded, late, stays deferred when it fails.
func (e *Engine) free(s *segment, late bool, dismantle func(*segment) error) error {
	err := dismantle(s)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		s.arena.enter(s.span, nil)
		s.arena.space.release(s.span)
		s.tag.remove(s)
		if s.contents != nil {
			s.contents.Discard()
		}
		return nil
	case late:
		e.deferred = append(e.deferred, s)
	case captureForbids(err):
		// A capture that the seam did not see begin: the free waits for its end all the same.
		e.deferred = append(e.deferred, s)
		return nil
	case s.extent.mapped:
		s.state = active
	default:
		s.state = paused // its memory is out of reach already; what is left goes at the next try
	}
	return fmt.Errorf("freeing %#x: %w", s.address, err)
}

func (e *Engine) dismantle(s *segment) error {
	if s.extent.mapped {
		if err := s.device.synchronize(); err != nil {
			return err
		}
	}
	return s.extent.unmake(s.device)
}

func captureForbids(err error) bool {
	return errors.Is(err, cuda.StreamCaptureUnsupported) || errors.Is(err, cuda.StreamCaptureImplicit)
}

// FreeDeferred makes the frees that a stream capture held up and returns how many succeeded. The
// others stay, for the next time.
func (e *Engine) FreeDeferred() int {
	e.mu.Lock()
	waiting := e.deferred
	e.deferred = nil
	e.mu.Unlock()
	done := 0
	for _, s := range waiting {
		if e.free(s, true, e.dismantle) == nil {
			done++
		}
	}
	return done
}
