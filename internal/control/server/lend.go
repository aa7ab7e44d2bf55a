package server

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/guard"
	"tms/internal/control"
	"tms/internal/machine/process"
	"tms/vmm/cuda"
)

// The socket's thread sends other processes the descriptors of this process's memory. The driver makes such a
// descriptor in the process's table, but this thread has its connections in a table of its own. So another thread makes
// the descriptor and sends it to the process's own socket, and the socket's thread passes it on to the other process.

// lend is a request for memory.
type lend struct {
	client *connection
	id     uint64 // of the request
	number uint64 // names the descriptor that is handed over
	share  uint64
	to     Importer
	waits  bool // the client still waits
	passed int  // the descriptor to send, or -1
}

// lend queues a request for memory.
func (s *Server) lend(c *connection, r control.LendRequest) error {
	if bytes, has := s.held.Bytes(r.Memory); has {
		descriptor, err := s.held.Copy(r.Memory)
		if err == nil {
			c.lent = &lend{passed: descriptor}
			c.answer(control.Reply{ID: r.ID, OK: true, Bytes: bytes, Extent: bytes})
		}
		return err
	}
	if c.pid <= 0 {
		return errors.New("the importer cannot be seen from this process: it is in another container")
	}
	start, _, err := process.Started(c.pid)
	if err != nil {
		return err
	}
	s.numbers++
	c.status = lendAwaited
	s.lends = append(s.lends, &lend{client: c, id: r.ID, number: s.numbers, share: r.Memory,
		to: Importer{PID: c.pid, Start: start, Number: r.Import}, waits: true, passed: -1})
	return nil
}

// beginLend makes another thread carry out the next request for memory.
func (s *Server) beginLend(now time.Time) {
	for s.lending == nil && len(s.lends) > 0 {
		next := s.lends[0]
		s.lends = s.lends[1:]
		if !next.waits {
			continue
		}
		s.lending, s.handed = next, now
		number, share, to := next.number, next.share, next.to
		var offered *control.Reply
		refused := &control.Reply{}
		s.process.Hand(func() error {
			descriptor, reply, err := s.process.Lend(share, to)
			if err != nil {
				refused.Stopped = reply.Stopped
				return err
			}
			defer func() { _ = unix.Close(descriptor) }()
			unix.CloseOnExec(descriptor)
			reply.OK = true
			offered = &reply
			s.lent.Store(offered)
			return tellSelf(s.process.Directories, control.LendRequest{ID: number, Op: control.Hand}, descriptor)
		}, func(err error) {
			if err == nil || offered != nil && !s.lent.CompareAndSwap(offered, nil) {
				return // the socket's thread took the reply and answers, if late
			}
			if offered != nil {
				s.giveUp(share, to)
			}
			s.unlent.Store(failed(refused, err))
		})
	}
}

// take accepts the descriptor that the process has sent to itself.
func (s *Server) take(c *connection, r control.LendRequest) error {
	var reply *control.Reply
	l := s.lending
	if c.pid == os.Getpid() && l != nil && l.number == r.ID {
		reply = s.lent.Swap(nil)
	}
	if reply == nil {
		return errors.New("nothing was to be handed over")
	}
	passed := c.passed
	if c.passed = -1; passed < 0 { // this thread's table is full, or the system's
		reply = &control.Reply{Code: int(cuda.OperatingSystem), Error: "the process that has the memory has no " +
			"room for a descriptor"}
		s.giveUp(l.share, l.to)
	}
	s.answerLend(reply, passed)
	return nil
}

// answerLend ends the request on which another thread was working. The descriptor of a refused request is -1.
func (s *Server) answerLend(reply *control.Reply, descriptor int) {
	l := s.lending
	s.lending = nil
	if l.passed = descriptor; !l.waits {
		s.drop(l)
		return
	}
	l.client.lent, l.client.status = l, noStatus
	reply.ID = l.id
	l.client.answer(*reply)
}

// drop closes a descriptor that could not be sent, and makes the process forget its importer.
func (s *Server) drop(l *lend) {
	if l.passed >= 0 {
		_ = unix.Close(l.passed)
		l.passed = -1
		s.giveUp(l.share, l.to)
	}
}

// giveUp makes the process forget an importer. A panic there stops no other client.
func (s *Server) giveUp(share uint64, to Importer) {
	if err := guard.Call(func() error { s.process.Returned(share, to); return nil }); err != nil {
		s.process.Log(err)
	}
}

// unlend gives up the requests of a client that has gone.
func (s *Server) unlend(c *connection) {
	if s.lending != nil && s.lending.client == c {
		s.lending.waits = false
	}
	for _, l := range s.lends {
		if l.client == c {
			l.waits = false
		}
	}
	if c.lent != nil {
		s.drop(c.lent)
	}
	if c.passed >= 0 {
		_ = unix.Close(c.passed)
	}
}
