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
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/internal/machine/process"
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
	lasting []*connection // stand for the pauses that outlast their clients; never among clients
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
	for _, c := range s.lasting {
		if c.lasting.Until > 0 && !c.over {
			until(now.Add(time.Until(c.lasting.End())))
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

// collect takes what other threads have done.
func (s *Server) collect() {
	if reply := s.status.Swap(nil); reply != nil {
		s.answerStatus(reply)
	}
	if reply := s.unlent.Swap(nil); reply != nil {
		s.answerLend(reply, -1)
	}
	if err := s.woken.Swap(nil); err != nil {
		s.woke(*err)
	}
	if outcome := s.done.Swap(nil); outcome != nil {
		s.finish(outcome)
	}
}
