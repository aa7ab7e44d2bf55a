// Package server answers at the control socket of a process; package control has the protocol. One thread serves all
// clients and waits for none of them, with a descriptor table of its own (docs/design/control.md). So it hands
// work that takes time, or that opens descriptors for the process, to other threads, and looks at its clients now and
// then until the work is done. Package rights says what the process takes back when a client goes.
//
// The nouns: a connection is one client. A task is a request that another thread carries out, with an outcome. A lend
// sends a descriptor of memory that another process imports. The thread holds descriptors for the process (Held), until
// the process drops them or the keeper has them: a descriptor ends with its holder.
package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/guard"
	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/internal/machine/process"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

// RetryEvery is how often the server tries to resume what a departed client left paused.
const RetryEvery = 500 * time.Millisecond

const (
	clientPatience = 5 * time.Second  // with a client that neither ends its line nor reads its reply
	firstGlance    = time.Millisecond // between looks at clients while another thread works; then a 32nd of its time
	lastGlance     = 20 * time.Millisecond
	stoppedLook    = 50 * time.Millisecond  // between looks whether a client is stopped for which the program waits
	backOff        = 100 * time.Millisecond // when the kernel has no room
	ownFirst       = 2 * time.Millisecond   // between looks at the gate; then a thousandth of the time that it is paused
	ownLast        = 10 * time.Millisecond
	commandMost    = 512 // bytes of the command that a status has
)

// Server serves one process. Other threads reach the fields from starting to listens, and done to unlent.
type Server struct {
	process Process
	looks   time.Duration // firstGlance

	starting sync.Mutex
	asked    chan start // work for the thread, or nil if there is no thread
	holding  bool       // the process can reach the thread
	listens  bool       // others can, too

	socket  Socket
	looked  time.Time // when the server last checked that it is still there
	clients []*connection
	queue   []*Task
	running *Task
	stopped process.Watch // of the client of running, which takes memory as it comes
	watched time.Time     // when that was last looked at
	asking  bool          // a status is being read
	handed  time.Time     // when work was last given to another thread
	rights  rights.Rights[*connection]
	retryAt time.Time // when the server next tries to resume what departed clients left
	retried bool      // it has tried, and logged that
	full    time.Time // until then it accepts no client, because the kernel had no room
	glanced time.Time // at the gate
	lends   []*lend   // requested
	held    descriptors.Holder
	missing []uint64 // numbers that it held when the process was dumped, and that no tms restore has given it yet
	lending *lend    // the one that another thread works on
	gives   []extent
	keeper  int       // the connection on which the first of gives was sent, or -1 if it was not sent
	giveAt  time.Time // when to try that again
	unfound time.Time // since when the keeper has had no socket, or zero if it may have one
	aside   int       // the socket at the second address, or -1
	numbers uint64    // of lends so far

	outside Outside       // what the program must not take back
	kept    []*connection // stand for the pauses that outlast their clients; never among clients
	own     *connection   // stands for the process, which wants paused what was paused with Yield; never among clients
	ran     time.Time     // since when it has had all of that
	waits   time.Duration // Process.Waits then
	yields  bool          // something is so paused
	yielded time.Time     // when the last such pause was done
	awaited time.Time     // since when a thread has waited for the memory, or zero if no thread waits
	away    float64       // seconds from the last yielded to the last awaited, or negative before the first
	wakes   bool          // another thread is in Process.Wake
	wakeAt  time.Time     // when to try that again

	seen uint32 // calls
	came bool   // a client has, and the server has not read its request yet

	done   atomic.Pointer[Outcome] // of running
	status atomic.Pointer[control.Reply]
	lent   atomic.Pointer[control.Reply] // of lending, which goes with the descriptor
	unlent atomic.Pointer[control.Reply] // of lending, without a descriptor
	woken  atomic.Pointer[error]         // of Process.Wake
}

// New returns the server of a process, which does not listen yet.
func New(process Process) *Server {
	return &Server{process: process, looks: firstGlance, held: descriptors.Holder{Room: leavesRoom},
		own:    &connection{descriptor: -1},
		socket: Socket{Descriptor: -1}, keeper: -1, aside: -1, ran: time.Now(), away: -1}
}

// loop serves until an unexpected error, and keeps the server's state then.
func (s *Server) loop() error {
	events := make([]unix.PollFd, 0, control.MaxClients+1)
	for {
		select {
		case asks := <-s.asked:
			_ = s.begun(asks)
		default:
		}
		now := time.Now()
		events = append(events[:0], unix.PollFd{Fd: int32(s.socket.Descriptor), Events: unix.POLLIN})
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
		events = append(events, unix.PollFd{Fd: int32(s.aside), Events: unix.POLLIN},
			unix.PollFd{Fd: int32(s.keeper), Events: unix.POLLIN})
		aside, keeper := len(events)-2, len(events)-1
		timeout := s.timeout(now)
		if s.lending == nil && (s.running != nil || s.asking) {
			if !s.came { // its request may have come with the last call
				awaitCall(s.seen, timeout) // no descriptor shows the end of that
			}
			timeout = 0
		}
		s.came, s.seen = false, calls.Load() // before the looks below, so a later call ends the next wait
		if _, err := unix.Poll(events, timeout); err != nil {
			if !errors.Is(err, unix.EINTR) { // the host may allow itself fewer descriptors than these
				time.Sleep(backOff)
			}
			continue
		}
		now = time.Now()
		s.collect()
		for i, c := range s.clients {
			if events[i+1].Revents&unix.POLLIN != 0 { // even what comes with a hang-up
				c.read()
			}
			s.hear(c, now)
			if events[i+1].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
				c.gone = true
			}
			s.expire(c, now)
		}
		s.watchAhead(now)
		s.endLends(now)
		s.glance(now)
		if events[0].Revents != 0 {
			s.accept(s.socket.Descriptor, now)
		}
		if events[aside].Revents != 0 {
			s.accept(s.aside, now)
		}
		if events[keeper].Revents != 0 {
			s.heardFromKeeper(now)
		}
		s.giveNext(now)
		s.look(now)
		s.leave()
		s.begin(now)
		for _, c := range s.clients {
			c.write(now)
		}
		s.leave()
		s.park(now)
	}
}

// watchAhead ends a request that is Ahead once its client has been stopped for a while. Only the client can end its
// wait, and until then calls of the program wait for it.
func (s *Server) watchAhead(now time.Time) {
	t := s.running
	if t == nil || t.client == nil || t.Request.Ahead == nil {
		s.stopped = process.Watch{}
		return
	}
	if now.Sub(s.watched) < stoppedLook {
		return
	}
	if s.watched = now; s.stopped.Exhausted(t.client.pid) {
		tell(t.withdrawn)
	}
}

// timeout returns how long to wait for something to happen, in milliseconds.
func (s *Server) timeout(now time.Time) int {
	if s.running != nil && s.running.Request.Ahead != nil { // its client has more to say
		return int(s.looks.Milliseconds())
	}
	if s.running != nil || s.asking || s.lending != nil {
		return int(max(s.looks, min(now.Sub(s.handed)/32, lastGlance)).Milliseconds())
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
	if len(s.gives) > 0 && s.keeper < 0 {
		until(s.giveAt)
	}
	if s.wakes {
		until(now.Add(ownLast))
	} else if s.rights.Has(s.own) {
		until(s.glanced.Add(s.ownGlance(now)))
	}
	for _, c := range s.kept {
		if c.kept.Until > 0 && !c.over {
			until(now.Add(time.Until(c.kept.End())))
		}
	}
	if len(s.rights.Due()) > 0 {
		if !now.Before(s.retryAt) {
			return 0
		}
		until(s.retryAt)
	}
	for _, c := range s.clients {
		if c.gone || s.ready(c) {
			return 0
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

// ready reports whether the client already has work for the server.
func (s *Server) ready(c *connection) bool {
	return c.waits() &&
		(bytes.IndexByte(c.in, '\n') >= 0 || c.ended && c.task == nil && (len(c.in) > 0 || !s.keeps(c)))
}

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
	sharing := lends || c.holds(r) || s.awaits(r)
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
	if sets && !c.holds(r) && !s.awaits(r) {
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
	case control.Pause, control.Resume, control.Undo, control.Move, control.Record, control.Align, control.Advance:
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

// settle shows other threads whether a client is pausing everything.
func (s *Server) settle() {
	if s.running == nil || !s.running.settles() { // else when that is done
		s.process.SetPending(s.rights.Pending(rights.Rest))
	}
}

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

// ask makes another thread build the status for all clients that want it.
func (s *Server) ask(now time.Time) {
	state := &control.ProcessState{PID: os.Getpid(), Command: command()}
	if s.running != nil {
		state.Doing = s.running.Request.Op
	}
	for _, c := range s.clients {
		if c.status == statusWanted {
			c.status = statusAsked
		}
	}
	s.asking, s.handed, state.Share, state.PausedBy = true, now, s.share(now), s.pausedBy()
	reply := &control.Reply{OK: true}
	s.process.Hand(func() (err error) {
		err = s.process.State(state)
		process, failed := json.Marshal(state) // what is known, even after an error
		reply.Process = process
		return cmp.Or(err, failed)
	}, func(err error) {
		if err != nil {
			failed(reply, err)
		}
		s.status.Store(reply)
		wake()
	})
}

// command reads the command line each time, because the process may have changed it (setproctitle).
func command() string {
	text, _ := os.ReadFile("/proc/thread-self/cmdline")
	text = text[:min(len(text), commandMost)]
	arguments := strings.ReplaceAll(strings.TrimRight(string(text), "\x00"), "\x00", " ")
	return strings.ToValidUTF8(arguments, "\uFFFD")
}

// collect takes what other threads have done.
func (s *Server) collect() {
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
	if err := s.woken.Swap(nil); err != nil {
		s.woke(*err)
	}
	outcome := s.done.Swap(nil)
	if outcome == nil {
		return
	}
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
		s.endKept("tms resume has ended the pause")
	case op == control.Undo:
		s.rights.Resumed(outcome.Resumed...)
		s.endKept("the time of the lend is over, and its memory is back")
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
