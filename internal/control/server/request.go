package server

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"tms/internal/aid/guard"
	"tms/internal/control"
	"tms/vmm/stats"
)

// hear acts on the lines that a client has sent.
func (s *Server) hear(c *connection, now time.Time) {
	for c.waits() {
		line, rest, whole := bytes.Cut(c.in, []byte{'\n'})
		if len(line) > control.MaxLine {
			c.fail(fmt.Errorf("the request has more than %d bytes: is a name in it so long?", control.MaxLine))
			return
		}
		if !whole {
			break
		}
		c.in, c.since = slices.Clone(rest), now
		if line = bytes.TrimSpace(line); len(line) > 0 {
			s.request(c, line)
		}
	}
	if !c.waits() || !c.ended || c.task != nil {
		return
	}
	if len(c.in) > 0 {
		c.fail(errors.New("the line has no end"))
	} else if !s.keeps(c) {
		c.gone = true
	}
}

// ready reports whether the client already has work for the server.
func (s *Server) ready(c *connection) bool {
	return c.waits() &&
		(bytes.IndexByte(c.in, '\n') >= 0 || c.ended && c.task == nil && (len(c.in) > 0 || !s.keeps(c)))
}

// keeps reports whether something lasts as long as the client is connected, even if it sends nothing more.
func (s *Server) keeps(c *connection) bool { return s.rights.Has(c) || c.recording > 0 }

// expire gives up a client that takes too long.
func (s *Server) expire(c *connection, now time.Time) {
	if len(c.out) > 0 && now.Sub(c.written) > clientPatience {
		c.gone = true
	}
	if late := c.reads() && now.Sub(c.since) > clientPatience; late && len(c.in) > 0 {
		c.fail(fmt.Errorf("the line was not ended for %v", clientPatience))
	} else if late && !c.seated {
		c.fail(errCrowded)
	}
	if s.leases(c) && now.Sub(c.written) > c.lease {
		c.fail(fmt.Errorf("this client was silent for %v while threads waited for it (stopped?): they go on", c.lease))
	}
}

// leases reports whether a client must send something in time: it need not while it waits for an answer.
func (s *Server) leases(c *connection) bool {
	return c.lease > 0 && c.task == nil && c.waits() && s.rights.Holds(c)
}

// request does what a line asks for, or puts it in the queue.
func (s *Server) request(c *connection, line []byte) {
	r, id, err := control.ParseRequest(line)
	if err != nil {
		c.refuse(id, err)
		return
	}
	if unknown := control.Unknown(line); len(unknown) > 0 {
		c.ignored[id] = unknown
	}
	_, lends := r.(control.LendRequest)
	sharing := lends || c.isSelfPut(r) || s.awaits(r)
	if c.seated = c.seated || !sharing && s.seats(); !c.seated && !sharing {
		c.fail(errCrowded)
		return
	}
	err = guard.Call(func() error { return s.act(c, r) })
	if panicked := (*guard.Panic)(nil); errors.As(err, &panicked) {
		s.process.Log(err)
		c.answer(*failed(&control.Reply{ID: id}, err))
	} else if err != nil {
		c.refuse(id, err)
	}
}

// act answers, now or when what the request asks for is done. Errors: a refusal.
func (s *Server) act(c *connection, r control.Request) error {
	err := s.allowed(c, r)
	if err != nil {
		return err
	}
	// The request is one of these, and the others are empty.
	steer, _ := r.(control.SteerRequest)
	lend, _ := r.(control.LendRequest)
	set, sets := r.(control.SetRequest)
	if sets && !c.isSelfPut(r) && !s.awaits(r) {
		return fmt.Errorf("only the keeper answers a %s", set.Op)
	}
	reply := control.Reply{ID: r.Identity(), OK: true}
	if r.Operation() == control.Undo && c.isAhead() {
		tell(c.task.withdrawn)
		c.answer(reply)
		return nil
	}
	switch r.Operation() {
	case control.Status:
		c.status, c.statusID = statusWanted, steer.ID
		return nil
	case control.Pause, control.Resume, control.Undo, control.Move, control.Record, control.Align, control.Advance,
		control.Adopt:
		return s.enqueue(c, steer)
	case control.Keep:
		if err = c.busy(); err == nil {
			s.keep(c, steer, time.Now())
			s.settle()
		}
	case control.Complete:
		if !c.isAhead() {
			return errors.New("no request of this client waits for memory that comes")
		}
		tell(c.task.complete)
	case control.Note:
		s.process.Note(*steer.Driver)
		s.publish() // a process that is lost no longer waits

	case control.Lend:
		return s.lend(c, lend)
	case control.Hand:
		err = s.take(c, lend)
	case control.Returned:
		s.process.Returned(lend.Memory, Importer{PID: c.pid, Number: lend.Import})

	case control.Contents:
		reply.Contents = s.contents()
	case control.Park:
		c.parks = &steer
		return nil

	case control.Put:
		if err = s.held.Put(set.Held, set.Bytes, &c.passed); err == nil {
			s.arrived(set.Held)
		}
		reply.Bytes = uint64(s.held.Count())
	case control.Close:
		_ = s.held.Drop(set.Held)
		reply.Bytes = uint64(s.held.Count()) // 0: the process needs no spare numbers any longer
	case control.Give:
		err = s.give(set)
	}
	if err == nil {
		c.answer(reply)
	}
	return err
}

// busy refuses a request that changes something while the client has another one.
func (c *connection) busy() error {
	if c.task != nil {
		return fmt.Errorf("the %s before is not done yet", c.task.Request.Op)
	}
	return nil
}

// enqueue puts a request in the queue that changes something.
func (s *Server) enqueue(c *connection, r control.SteerRequest) error {
	if err := c.busy(); err != nil {
		return err
	}
	if r.Op == control.Resume && len(s.missing) > 0 {
		return s.errAwaits()
	}
	if r.Op == control.Adopt {
		if len(s.missing) == 0 {
			return errors.New("only a process that was restored from a snapshot, and awaits its contents, adopts sets")
		}
		s.renumber(r.Sets)
	}
	if r.Op == control.Record && (r.File == "") != (c.recording > 0) {
		return errors.New("a client has one recording at a time, which it ends by a record without a file")
	}
	if r.Op == control.Align && !s.rights.Align(c) {
		return errors.New("another client aligns the process with others")
	}
	if r.Lease > 0 {
		c.lease = control.Seconds(r.Lease)
	}
	c.task = &Task{client: c, Request: r, Recording: c.recording, withdrawn: make(chan struct{}),
		complete: make(chan struct{}), words: c.words(), outside: &s.outside}
	if r.Turn {
		c.task.Asked = c.asked
	}
	if r.Tag != nil {
		name := stats.TagName(*r.Tag)
		c.task.Tag = &name
	}
	s.queue = append(s.queue, c.task)
	return nil
}
