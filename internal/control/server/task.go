package server

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/vmm/cuda"
)

// begin hands work to other threads.
func (s *Server) begin(now time.Time) {
	if !s.asking && slices.ContainsFunc(s.clients, func(c *connection) bool { return c.status == statusWanted }) {
		s.ask(now)
	}
	s.beginLend(now)
	if s.running != nil {
		return
	}
	var t *Task
	if len(s.queue) > 0 {
		t = s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
	} else if due := s.rights.Due(); len(due) > 0 && !now.Before(s.retryAt) {
		t = undoOf(due)
	} else {
		return
	}
	if t.Request.Op == control.Pause && !t.Request.Hold {
		t.lets = t.lets || s.rights.Pauses(t.client)
	} else if t.Request.Op == control.Undo && t.client != nil {
		of := t.client
		if t.Request.Yield {
			of = s.own
		}
		orphaned := s.rights.Undo(of)
		t.lets, t.Due = orphaned.Hold, orphaned.Due
		s.release(rights.Orphaned{Align: orphaned.Align})
		s.publish()
	}
	s.running, s.handed = t, now
	outcome := &Outcome{}
	s.process.Hand(func() error { return s.perform(t, outcome) }, func(err error) {
		outcome.Reply.Seconds = time.Since(now).Seconds()
		if outcome.Reply.OK = err == nil; !outcome.Reply.OK {
			failed(&outcome.Reply, err)
		}
		s.done.Store(outcome)
		wake()
	})
}

// perform carries out a task on another thread.
func (s *Server) perform(t *Task, outcome *Outcome) error {
	if t.lets && t.Request.Op == control.Undo {
		s.process.LetGo()
	} else if t.lets {
		defer s.process.LetGo() // until then the pause itself stops the threads
	}
	return s.process.Perform(t, outcome)
}

// failed turns a reply into that of a failure.
func failed(reply *control.Reply, err error) *control.Reply {
	reply.OK, reply.Code, reply.Error = false, cuda.Code(err), err.Error()
	return reply
}

// finish does what the end of the running task brings about, and answers its client.
func (s *Server) finish(outcome *Outcome) {
	t, reply := s.running, &outcome.Reply
	s.running = nil
	switch op := t.Request.Op; {
	case op == control.Record && t.client != nil && (reply.OK || t.Request.File == ""):
		t.client.recording = outcome.Recording
	case op == control.Record && t.client == nil && outcome.Recording > 0:
		s.process.EndRecording(outcome.Recording)
	case op == control.Align && t.client == nil:
		s.release(rights.Orphaned{Align: true})
	case outcome.Held:
		s.release(rights.Orphaned{Hold: !s.rights.Held(t.client)})
	case op == control.Pause && t.Request.Yield:
		s.rights.Took(s.own, outcome.Took)
		s.yielded = time.Now()
	case op == control.Pause:
		if reply.OK && t.client != nil {
			reply.Note = cmp.Or(s.takesOver(t.Tag), reply.Note)
		}
		s.paused(t, outcome)
		if t.client == nil {
			s.release(rights.Orphaned{Due: outcome.Took})
		}
	case op == control.Resume && reply.OK:
		if t.Tag == nil || outcome.Active {
			s.rights.ResumedAll()
		} else {
			s.rights.Resumed(*t.Tag)
		}
		s.endLasting("tms resume has ended the pause")
	case op == control.Undo:
		s.rights.Resumed(outcome.Resumed...)
		s.endLasting("the time of the lend is over, and its memory is back")
		if t.client == nil && !reply.OK {
			if !s.retried {
				s.process.Log(errors.New(s.cannotResume() + reply.Error))
			}
			s.retried, s.retryAt = true, time.Now().Add(RetryEvery)
		}
	}
	s.outside.publish(s.rights.Bars(), true)
	s.settle()
	if t.client != nil {
		if !t.Request.Turn || reply.Code != int(cuda.OutOfMemory) {
			t.client.asked = time.Time{}
		} else if t.client.asked.IsZero() {
			t.client.asked = s.handed
		}
		t.client.task = nil
		reply.ID = t.Request.ID
		t.client.answer(*reply)
	}
}
