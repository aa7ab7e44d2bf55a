package server

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tms/internal/control"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// A process takes back what a pause with Yield took, when one of its threads waits for it.

// ErrAlone is what Process.Wake returns where no other process makes room.
var ErrAlone = errors.New("no other process makes room")

// wake has the process take back what it has yielded, because a thread waits for that.
func (s *Server) wake(now time.Time) {
	if s.awaited.IsZero() {
		s.awaited, s.away = now, max(0, now.Sub(s.yielded).Seconds()) // it may have begun during the pause
	}
	if !s.wakes && !now.Before(s.wakeAt) {
		s.wakes = true
		s.process.Hand(s.process.Wake, func(err error) { s.woken.Store(&err) })
	}
}

// woke ends a wake, which err ended.
func (s *Server) woke(err error) {
	s.wakes = false
	alone := errors.Is(err, ErrAlone)
	if err != nil && !alone {
		if s.wakeAt.Before(s.awaited) {
			s.process.Log(fmt.Errorf("a thread waits for device memory: %w", err))
		}
		s.wakeAt = time.Now().Add(RetryEvery)
	}
	if alone {
		s.release(s.rights.Leave(s.own))
	} else if due := s.rights.Alone(s.own); cuda.Code(err) == int(cuda.OperatingSystem) && len(due) > 0 {
		// The command could not be started, perhaps for a moment: until it can, the process takes what others leave.
		s.queue = append(s.queue, undoOf(due))
	}
}

// takesOver returns a note for a client whose pause of a tag, nil for all, finds memory that only the process itself
// wants paused. From then on that memory does not come back at the next call. Without such memory the note is "".
func (s *Server) takesOver(tag *string) string {
	yielded := s.rights.Alone(s.own)
	if len(yielded) == 0 || tag != nil && !slices.Contains(yielded, *tag) {
		return ""
	}
	return "it was paused until the program's next call (tms idle or --share), and now stays so until a resume"
}

// share returns what the server itself knows of sharing.
func (s *Server) share(now time.Time) *control.Share {
	ran := now.Sub(s.ran) - (s.process.Waits() - s.waits)
	of := &control.Share{Ran: max(0, ran.Seconds()), Away: s.away, Waited: -1, Yielded: []string{}}
	if !s.awaited.IsZero() {
		of.Waited = now.Sub(s.awaited).Seconds()
	}
	for _, name := range s.rights.Alone(s.own) {
		of.Yielded = append(of.Yielded, stats.TagText(name))
	}
	return of
}

// glance looks whether a thread waits for yielded memory. It polls, because a notice would cost threads time at every
// call.
func (s *Server) glance(now time.Time) {
	yields := s.rights.Has(s.own)
	if s.yields && !yields { // the process has its memory again, or another client has taken the pause over
		s.ran, s.waits, s.awaited = now, s.process.Waits(), time.Time{}
	}
	s.yields = yields
	// While a task runs, the gate may be open or closed for a step that is not done yet.
	if !yields || s.running != nil || now.Sub(s.glanced) < s.ownGlance(now) {
		return
	}
	if s.glanced = now; s.process.Awaited() {
		s.wake(now)
	}
}

func (s *Server) ownGlance(now time.Time) time.Duration {
	return max(ownFirst, min(now.Sub(s.yielded)/1000, ownLast))
}
