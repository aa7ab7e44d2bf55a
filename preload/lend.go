package main

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/process"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// What the thread of the control socket does for other processes that have memory of this one open (ipc.go asks). The
// driver makes a descriptor of memory in the process's table, where this thread's connections are not: so the thread
// that has it made sends it to the process's own socket, and it goes on to the other process from there.

// lend is a request for memory.
type lend struct {
	client *connection
	id     uint64 // of the request
	number uint64 // names the descriptor that is handed over
	share  uint64
	to     vmm.Importer
	waits  bool // the client still does
	passed int  // the descriptor, until it has been sent; -1: none
}

// importer returns the process that asks.
func (c *connection) importer(number uint64) (vmm.Importer, error) {
	if c.pid <= 0 {
		return vmm.Importer{}, errors.New("the importer cannot be seen from this process: it is in another container")
	}
	start, _, err := process.Started(c.pid)
	return vmm.Importer{PID: c.pid, Start: start, Number: number}, err
}

// lend queues a request for memory.
func (s *server) lend(c *connection, r control.Request) {
	to, err := c.importer(r.Import)
	if err != nil {
		c.refuse(r.ID, err)
		return
	}
	lends.made++
	c.status = lendAwaited
	s.lends = append(s.lends, &lend{client: c, id: r.ID, number: lends.made, share: r.Share, to: to, waits: true,
		passed: -1})
}

// lends belongs to the socket's thread.
var lends struct{ made uint64 }

// returned notes that memory is not mapped any more. That waits for nothing.
func returned(c *connection, r control.Request) {
	if e := engine.Load(); e != nil {
		e.Returned(r.Share, c.pid, r.Import)
	}
	c.answer(control.Reply{ID: r.ID, OK: true})
}

// beginLend has another thread do the next request for memory.
func (s *server) beginLend(now time.Time) {
	for s.lending == nil && len(s.lends) > 0 {
		next := s.lends[0]
		s.lends = s.lends[1:]
		if !next.waits {
			continue
		}
		s.lending, s.handed = next, now
		goruntime.Hand(func() { s.perform(next.number, next.share, next.to) })
	}
}

// perform lends memory, on another thread.
func (s *server) perform(number, share uint64, to vmm.Importer) {
	err := goruntime.Run(func() error {
		e := engine.Load()
		if e == nil {
			return vmm.ErrShareGone
		}
		if C.everything_asked() {
			return vmm.ErrSharePaused
		}
		lent, err := e.Export(share, to)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(lent.Descriptor) }()
		unix.CloseOnExec(lent.Descriptor)
		reply := &control.Reply{OK: true, Bytes: lent.Size, Extent: lent.Extent, Offset: lent.Offset,
			Tag: stats.TagText(lent.Tag), Device: lent.Device}
		s.lent.Store(reply)
		if err = passOver(number, lent.Descriptor); err == nil || !s.lent.CompareAndSwap(reply, nil) {
			return nil // the socket's thread took the reply, and answers, if late
		}
		e.Returned(share, to.PID, to.Number)
		return err
	})
	if err != nil {
		s.unlent.Store(&control.Reply{Code: cuda.Code(err), Error: err.Error()})
	}
}

// passOver sends a descriptor to the process's own socket.
func passOver(number uint64, descriptor int) error {
	socket, err := dial(unix.Getpid())
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	line := control.Line(control.Request{Version: control.Version, ID: number, Op: control.Hand})
	err = again(func() error { return unix.Sendmsg(socket, line, unix.UnixRights(descriptor), nil, unix.MSG_NOSIGNAL) })
	if err != nil {
		return err
	}
	reply, _, err := receive(socket) // a connection that ends before it is read is given up
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	return err
}

// take accepts the descriptor that the process has sent to itself.
func (s *server) take(c *connection, r control.Request) {
	var reply *control.Reply
	if c.pid == unix.Getpid() && s.lending != nil && s.lending.number == r.ID {
		reply = s.lent.Swap(nil)
	}
	if reply == nil {
		c.refuse(r.ID, errors.New("nothing was to be handed over"))
		return
	}
	if c.passed < 0 { // this thread's table is full, or the system's
		reply = &control.Reply{Code: int(C.ERROR_OPERATING_SYSTEM), Error: "the process that has the memory has no " +
			"room for a descriptor"}
		s.lending.giveUp()
	}
	s.answerLend(reply, c.passed)
	c.passed = -1
	c.answer(control.Reply{ID: r.ID, OK: true})
}

// answerLend ends the request that another thread was at; descriptor: -1: it was refused.
func (s *server) answerLend(reply *control.Reply, descriptor int) {
	l := s.lending
	s.lending = nil
	if l.passed = descriptor; !l.waits {
		l.drop()
		return
	}
	l.client.lent, l.client.status = l, noStatus
	reply.ID = l.id
	l.client.answer(*reply)
}

// drop closes a descriptor that could not be sent, and has the engine forget its importer.
func (l *lend) drop() {
	if l.passed >= 0 {
		_ = unix.Close(l.passed)
		l.passed = -1
		l.giveUp()
	}
}

func (l *lend) giveUp() {
	if e := engine.Load(); e != nil {
		e.Returned(l.share, l.to.PID, l.to.Number)
	}
}

// unlend gives up the requests of a client that has gone.
func (s *server) unlend(c *connection) {
	if s.lending != nil && s.lending.client == c {
		s.lending.waits = false
	}
	for _, l := range s.lends {
		if l.client == c {
			l.waits = false
		}
	}
	if c.lent != nil {
		c.lent.drop()
	}
	if c.passed >= 0 {
		_ = unix.Close(c.passed)
	}
}

// rights returns the descriptor that goes with the next bytes, as a control message.
func (c *connection) rights() []byte {
	if c.lent == nil || c.lent.passed < 0 {
		return nil
	}
	return unix.UnixRights(c.lent.passed)
}

// sent closes the descriptor once the kernel has it.
func (c *connection) sent() {
	if c.lent != nil && c.lent.passed >= 0 {
		_ = unix.Close(c.lent.passed)
	}
	c.lent = nil
}

// receive reads what a client has sent; of the process itself, with a descriptor.
func (c *connection) receive(buffer []byte) (int, error) {
	if c.pid != unix.Getpid() {
		return unix.Read(c.descriptor, buffer)
	}
	rights := make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := unix.Recvmsg(c.descriptor, buffer, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return n, err
	}
	if descriptor, err := rightsIn(rights[:m]); err == nil && descriptor >= 0 {
		if c.passed >= 0 {
			_ = unix.Close(c.passed)
		}
		c.passed = descriptor
	}
	return n, nil
}

// rightsIn is the descriptor that came with a message; -1: none did.
func rightsIn(rights []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return -1, err
	}
	descriptors, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(descriptors) != 1 {
		return -1, fmt.Errorf("%d descriptors: %w", len(descriptors), err)
	}
	return descriptors[0], nil
}
