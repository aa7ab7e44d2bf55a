package main

/*
#include "shim.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/preload/goruntime"
	"tms/preload/record"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

const (
	clientPatience = 5 * time.Second  // with a client that neither ends its line nor reads its reply
	firstGlance    = time.Millisecond // between looks whether another thread is done; then a 32nd of its time
	lastGlance     = 20 * time.Millisecond
	retryEvery     = 500 * time.Millisecond // of what a client that has gone left to be resumed
	backOff        = 100 * time.Millisecond // when the kernel has no room
	gateGlance     = 50 * time.Millisecond  // between looks whether a thread waits at the gate, for a client
)

// server is what the thread knows. Other threads reach the last four alone.
type server struct {
	socket  int
	path    string // of the socket
	made    unix.Stat_t
	looked  time.Time // whether it is still there
	clients []*connection
	queue   []*task
	running *task
	asking  bool      // a status is being read
	handed  time.Time // when work was last given to another thread
	rights  rights.Rights[*connection]
	retryAt time.Time // when the server next tries what clients that have gone left to do
	retried bool      // it has tried, and logged that
	full    time.Time // until then it accepts no client: the kernel had no room
	glanced time.Time // at the gate
	lends   []*lend   // that are asked for
	lending *lend     // that another thread is at

	done   atomic.Pointer[control.Reply] // of running
	status atomic.Pointer[control.Reply]
	lent   atomic.Pointer[control.Reply] // of lending, which goes with the descriptor
	unlent atomic.Pointer[control.Reply] // of lending, without a descriptor
}

// connection is one client.
type connection struct {
	descriptor int
	pid        int // of the client, as this process sees it; 0: it does not
	passed     int // a descriptor that it has sent; -1: none
	lent       *lend
	seated     bool      // one of MaxClients; the others may only say what processes have to say that share memory
	in         []byte    // not a whole line yet, or more than is looked at for now
	since      time.Time // its first byte
	out        []byte
	written    time.Time
	ended      bool // it sends no more
	closing    bool // it is let go when it has read its reply
	gone       bool
	task       *task
	status     uint8 // one of the below
	statusID   uint64
	awaits     time.Time     // of gateAwaited: how long
	lease      time.Duration // for which nothing need be heard of it while it holds threads up; 0: for ever
	recording  int           // which one it has asked for and not ended; 0: none
}

// What has become of a client's request for a status, for a thread at the gate, or for memory.
const (
	noStatus uint8 = iota
	statusWanted
	statusAsked
	gateAwaited
	lendAwaited
)

// loop serves until an unexpected error, and keeps the server's state then.
func (s *server) loop() error {
	events := make([]unix.PollFd, 0, control.MaxClients+1)
	for {
		now := time.Now()
		events = append(events[:0], unix.PollFd{Fd: int32(s.socket), Events: unix.POLLIN})
		if now.Before(s.full) {
			events[0].Fd = -1
		}
		for _, c := range s.clients {
			event := unix.PollFd{Fd: int32(c.descriptor)}
			if c.reads() {
				event.Events |= unix.POLLIN
			}
			if len(c.out) > 0 {
				event.Events |= unix.POLLOUT
			}
			events = append(events, event)
		}
		if _, err := unix.Poll(events, s.timeout(now)); err != nil {
			if !errors.Is(err, unix.EINTR) { // the host may allow itself fewer descriptors than these
				time.Sleep(backOff)
			}
			continue
		}
		now = time.Now()
		s.collect()
		for i, c := range s.clients {
			if events[i+1].Revents&unix.POLLIN != 0 { // also what comes with a hang-up
				c.read()
			}
			s.hear(c, now)
			if events[i+1].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
				c.gone = true
			}
			s.expire(c, now)
		}
		s.glance(now)
		if events[0].Revents != 0 {
			s.accept(now)
		}
		s.look(now)
		s.leave()
		s.begin(now)
		for _, c := range s.clients {
			c.write(now)
		}
		s.leave()
	}
}

// timeout returns how long to wait for something to happen, in milliseconds.
func (s *server) timeout(now time.Time) int {
	if s.running != nil || s.asking || s.lending != nil {
		return int(max(firstGlance, min(now.Sub(s.handed)/32, lastGlance)).Milliseconds())
	}
	next := s.looked.Add(control.Look)
	until := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	if now.Before(s.full) {
		until(s.full)
	}
	if len(s.rights.Due()) > 0 {
		if !now.Before(s.retryAt) {
			return 0
		}
		until(s.retryAt)
	}
	for _, c := range s.clients {
		if s.ready(c) {
			return 0
		}
		if c.status == gateAwaited {
			until(s.glanced.Add(gateGlance))
		}
		if len(c.out) > 0 {
			until(c.written.Add(clientPatience))
		}
		if c.reads() && (len(c.in) > 0 || !c.seated) {
			until(c.since.Add(clientPatience))
		}
		if s.leases(c) {
			until(c.written.Add(c.lease))
		}
	}
	return int(max(0, next.Sub(now)).Milliseconds()) + 1
}

// reads reports whether the server reads from the client now: replies go first.
func (c *connection) reads() bool {
	return !c.ended && !c.closing && !c.gone && c.status == noStatus && len(c.out) == 0
}

// ready reports whether the client already has work for the server.
func (s *server) ready(c *connection) bool {
	if c.gone || c.closing || c.status != noStatus || len(c.out) > 0 {
		return false
	}
	return bytes.IndexByte(c.in, '\n') >= 0 || c.ended && c.task == nil && (len(c.in) > 0 || !s.keeps(c))
}

func (c *connection) read() {
	buffer := make([]byte, 16<<10)
	n, err := c.receive(buffer)
	switch {
	case err == nil && n == 0:
		c.ended = true
	case err == nil:
		if len(c.in) == 0 {
			c.since = time.Now()
		}
		c.in = append(c.in, buffer[:n]...)
	case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
		c.gone = true
	}
}

// hear acts on the lines that a client has sent.
func (s *server) hear(c *connection, now time.Time) {
	for !c.gone && !c.closing && c.status == noStatus && len(c.out) == 0 {
		line, rest, whole := bytes.Cut(c.in, []byte{'\n'})
		if len(line) > control.MaxLine {
			c.fail(fmt.Errorf("the line is longer than %d bytes", control.MaxLine))
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
	if !c.ended || c.closing || len(c.out) > 0 || c.status != noStatus || c.task != nil {
		return
	}
	if len(c.in) > 0 {
		c.fail(errors.New("the line has no end"))
	} else if !s.keeps(c) {
		c.gone = true
	}
}

// keeps reports whether something lasts as long as the client, even one that sends nothing more.
func (s *server) keeps(c *connection) bool { return s.rights.Has(c) || c.recording > 0 }

// expire gives up a client that takes too long.
func (s *server) expire(c *connection, now time.Time) {
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

// leases reports whether a client must let itself be heard: not while it waits for an answer.
func (s *server) leases(c *connection) bool {
	return c.lease > 0 && c.task == nil && c.status == noStatus && !c.gone && !c.closing && len(c.out) == 0 &&
		s.rights.Holds(c)
}

var errCrowded = fmt.Errorf("%d clients are connected already; try again when one has gone", control.MaxClients)

// seats reports whether one more client can have all that is asked for.
func (s *server) seats() bool {
	taken := 0
	for _, c := range s.clients {
		if c.seated {
			taken++
		}
	}
	return taken < control.MaxClients
}

// fail lets a client go with words: where its next request would begin is not known.
func (c *connection) fail(err error) {
	c.refuse(0, err)
	c.closing, c.in = true, nil
}

func (c *connection) refuse(id uint64, err error) {
	c.answer(control.Reply{ID: id, Code: int(cuda.InvalidValue), Error: err.Error()})
}

func (c *connection) answer(reply control.Reply) {
	reply.Version = control.Version
	c.written = time.Now()
	c.since = c.written
	c.out = append(c.out, control.Line(reply)...)
}

func (c *connection) write(now time.Time) {
	for len(c.out) > 0 && !c.gone {
		n, err := unix.SendmsgN(c.descriptor, c.out, c.rights(), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == nil:
			c.sent()
			c.out, c.written = c.out[n:], now
		case errors.Is(err, unix.EAGAIN):
			return
		case !errors.Is(err, unix.EINTR):
			c.gone = true
		}
	}
	c.gone = c.gone || c.closing && len(c.out) == 0
}

// accept takes new clients: those of the same user, and root.
func (s *server) accept(now time.Time) {
	for {
		descriptor, _, err := unix.Accept4(s.socket, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			switch err {
			case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
				s.full = now.Add(backOff)
			case unix.EINTR, unix.ECONNABORTED:
				continue
			}
			return
		}
		c := &connection{descriptor: descriptor, passed: -1}
		peer, err := unix.GetsockoptUcred(descriptor, unix.SOL_SOCKET, unix.SO_PEERCRED)
		switch {
		case err != nil || int(peer.Uid) != unix.Geteuid() && peer.Uid != 0:
			c.fail(errors.New("the process is another user's"))
		default:
			c.pid, c.since = int(peer.Pid), now
			c.seated = s.seats()
			s.clients = append(s.clients, c)
			s.retryAt = time.Time{} // it has made room, perhaps
			continue
		}
		c.write(now)
		_ = unix.Close(descriptor)
	}
}

// request does what a line asks for, or puts it in the queue.
func (s *server) request(c *connection, line []byte) {
	r, err := control.ParseRequest(line)
	if err != nil {
		c.refuse(r.ID, err)
		return
	}
	if sharing := r.Op == control.Lend || r.Op == control.Returned || r.Op == control.Hand; !c.seated && !sharing {
		if c.seated = s.seats(); !c.seated {
			c.fail(errCrowded)
			return
		}
	}
	switch r.Op {
	case control.Status:
		c.status, c.statusID = statusWanted, r.ID
	case control.Await:
		c.status, c.statusID, c.awaits = gateAwaited, r.ID, time.Now().Add(seconds(r.Wait))
	case control.Cancel:
		s.cancel(c, r.ID)
	case control.Lend:
		s.lend(c, r)
	case control.Returned:
		returned(c, r)
	case control.Hand:
		s.take(c, r)
	default:
		if c.task != nil {
			c.refuse(r.ID, fmt.Errorf("the %s before is not done yet; send cancel to withdraw it", c.task.request.Op))
			return
		}
		if r.Op == control.Record && (r.File == "") != (c.recording > 0) {
			c.refuse(r.ID, errors.New("a client has one recording at a time, which it ends by a record without a file"))
			return
		}
		if r.Op == control.Align && !s.rights.Align(c) {
			c.refuse(r.ID, errors.New("another client aligns the process with others"))
			return
		}
		if r.Lease > 0 {
			c.lease = seconds(r.Lease)
		}
		if r.Op == control.Keep {
			s.release(s.rights.Keep(c))
			s.settle()
			c.answer(control.Reply{ID: r.ID, OK: true})
			return
		}
		c.task = &task{client: c, request: r, recording: c.recording}
		if r.Tag != nil {
			name := stats.TagName(*r.Tag)
			c.task.tag = &name
		}
		s.queue = append(s.queue, c.task)
	}
}

func (s *server) cancel(c *connection, id uint64) {
	switch {
	case c.task == nil:
		c.refuse(id, errors.New("there is nothing to withdraw"))
	case c.task != s.running:
		s.withdraw(c)
		c.answer(control.Reply{ID: id, OK: true})
	case c.task.request.Op == control.Resume && c.task.request.Wait > 0:
		c.task.withdrawn.Store(true)
		c.answer(control.Reply{ID: id, OK: true})
	default:
		c.refuse(id, fmt.Errorf("the %s has begun and is carried through", c.task.request.Op))
	}
}

// glance answers the clients that wait until a thread waits at the gate. It looks, because threads that told would pay
// for it at every call.
func (s *server) glance(now time.Time) {
	if now.Sub(s.glanced) < gateGlance || !slices.ContainsFunc(s.clients,
		func(c *connection) bool { return c.status == gateAwaited }) {
		return
	}
	s.glanced = now
	come := !bool(C.gate_is_shut()) || bool(C.gate_is_waited_for())
	for _, c := range s.clients {
		if c.status != gateAwaited {
			continue
		}
		if come {
			c.status = noStatus
			c.answer(control.Reply{ID: c.statusID, OK: true})
		} else if now.After(c.awaits) {
			c.status = noStatus
			c.answer(control.Reply{ID: c.statusID, Code: int(cuda.NotReady), Error: "no thread waits for the resume"})
		}
	}
}

// withdraw takes a client's request out of the queue.
func (s *server) withdraw(c *connection) {
	s.queue = slices.DeleteFunc(s.queue, func(t *task) bool { return t == c.task })
	c.refuse(c.task.request.ID, errors.New("withdrawn before it began; nothing has changed"))
	c.task = nil
}

// release takes back at once what nobody is responsible for any more.
func (s *server) release(r rights.Released) {
	if r.Hold {
		goruntime.Hand(letGo)
	}
	if r.Align && (s.running == nil || s.running.request.Op != control.Align) { // else when it is done
		C.nccl_release()
	}
	if len(r.Due) > 0 {
		s.retryAt, s.retried = time.Time{}, false
	}
}

// leave forgets the clients that have gone.
func (s *server) leave() {
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
			c.task.withdrawn.Store(true)
		} else if c.task != nil && c.task.request.NCCL.Wait() > 0 { // other ranks wait for this one: undo it later
			c.task.lets, c.task.client = s.rights.Pauses(c), nil
			c.task.withdrawn.Store(true)
		} else if c.task != nil {
			s.withdraw(c)
		}
		if c.recording > 0 {
			record.Abandon(c.recording)
		}
		s.release(s.rights.Leave(c))
		s.settle()
	}
}

// settle shows other threads whether a client is pausing everything.
func (s *server) settle() {
	if s.running == nil || !s.running.request.Everything { // else when that is done
		C.everything_set_pending(C.bool(s.rights.Pending(rights.Rest)))
	}
}

// begin hands work to other threads, which have the process's descriptors.
func (s *server) begin(now time.Time) {
	if !s.asking {
		for _, c := range s.clients {
			if c.status == statusWanted {
				c.status, s.asking = statusAsked, true
			}
		}
		if s.asking {
			s.handed = now
			s.ask()
		}
	}
	s.beginLend(now)
	if s.running != nil {
		return
	}
	if len(s.queue) > 0 {
		s.running = s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
	} else if due := s.rights.Due(); len(due) > 0 && !now.Before(s.retryAt) {
		s.running = &task{request: control.Request{Op: control.Undo}, tags: due}
		s.running.withdrawn.Store(true)
	} else {
		return
	}
	t := s.running
	if t.request.Op == control.Pause && !t.request.Hold {
		t.lets = t.lets || s.rights.Pauses(t.client)
	} else if t.request.Op == control.Undo && t.client != nil {
		released := s.rights.Undo(t.client)
		t.lets, t.tags = released.Hold, released.Due
		s.release(rights.Released{Align: released.Align})
	}
	s.handed = now
	goruntime.Hand(func() { s.done.Store(t.perform()) })
}

// collect takes what other threads have done.
func (s *server) collect() {
	if reply := s.status.Swap(nil); reply != nil {
		s.asking = false
		for _, c := range s.clients {
			if c.status == statusAsked {
				reply.ID = c.statusID
				c.status = noStatus
				c.answer(*reply)
			}
		}
	}
	if reply := s.unlent.Swap(nil); reply != nil {
		s.answerLend(reply, -1)
	}
	reply := s.done.Swap(nil)
	if reply == nil {
		return
	}
	t := s.running
	s.running = nil
	switch op := t.request.Op; {
	case op == control.Record && t.client != nil && (reply.OK || t.request.File == ""):
		t.client.recording = t.recording
	case op == control.Record && t.client == nil && t.recording > 0:
		record.Abandon(t.recording)
	case op == control.Align && t.client == nil:
		s.release(rights.Released{Align: true})
	case t.held:
		s.release(rights.Released{Hold: !s.rights.Held(t.client)})
	case op == control.Pause:
		s.rights.Took(t.client, t.tags)
		if reply.OK {
			s.rights.Paused(t.client, t.request.Keep, t.tag)
		}
		if t.client == nil {
			s.release(rights.Released{Due: t.tags})
		}
	case op == control.Resume && reply.OK:
		s.rights.Resumed(t.tag)
	case op == control.Undo:
		for _, tag := range t.resumed {
			s.rights.Resumed(&tag)
		}
		if t.client == nil && !reply.OK {
			if !s.retried {
				// On another thread: descriptor 2 is another here.
				go goruntime.Log("the client that paused this process has gone, and the process cannot be resumed " +
					"yet: " + reply.Error)
			}
			s.retried, s.retryAt = true, time.Now().Add(retryEvery)
		}
	}
	s.settle()
	if t.client != nil {
		t.client.task = nil
		reply.ID = t.request.ID
		t.client.answer(*reply)
	}
}
