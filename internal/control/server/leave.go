package server

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/rights"
)

// leave forgets the clients that have gone.
func (s *Server) leave() {
	for i := 0; i < len(s.clients); {
		c := s.clients[i]
		if !c.gone {
			i++
			continue
		}
		s.clients = slices.Delete(s.clients, i, i+1)
		_ = unix.Close(c.descriptor)
		s.unlend(c)
		if c.task != nil && c.task == s.running {
			c.task.client = nil
			tell(c.task.withdrawn)
		} else if c.task != nil && c.task.Request.NCCL.Wait() > 0 { // other ranks wait for this one: undo it later
			c.task.lets, c.task.client = s.rights.Pauses(c), nil
			tell(c.task.withdrawn)
		} else if c.task != nil {
			s.queue = slices.DeleteFunc(s.queue, func(t *Task) bool { return t == c.task })
		}
		if c.recording > 0 {
			s.process.EndRecording(c.recording)
		}
		s.release(s.rights.Leave(c))
		s.publish()
		s.settle()
	}
}

// release makes the process take back at once what a client has left.
func (s *Server) release(r rights.Orphaned) {
	if r.Hold {
		s.process.Hand(func() error { s.process.LetGo(); return nil }, func(error) {})
	}
	if r.Align && (s.running == nil || s.running.Request.Op != control.Align) { // else when it is done
		s.process.Unalign()
	}
	if len(r.Due) > 0 {
		s.retryAt, s.retried = time.Time{}, false
	}
}

// settle shows other threads whether a client is pausing everything.
func (s *Server) settle() {
	if s.running == nil || !s.running.settles() { // else when that is done
		s.process.SetPending(s.rights.Pending(rights.Rest))
	}
}
