package server

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// A process that CRIU dumps has one table of descriptors afterwards: CRIU looks at that of the main thread, and gives it
// to all threads that it restores. The socket's thread would then take the program's descriptors for its own. So before
// a dump a client parks the thread, which from then on only waits for that client, and looks after each wait whether its
// table is still its own. Until then the table stays as it is, and the contents with it: whatever ends the client or CRIU,
// the process that was to be dumped has lost nothing (docs/design/snapshot.md).

// parkedLook is how often a parked thread looks at its table where nothing comes from its client.
const parkedLook = 20 * time.Millisecond

// mayPark refuses a park that could not end, or would come in the middle of something.
func (s *Server) mayPark(c *connection) error {
	if _, err := s.process.SharesTable(); err != nil {
		return fmt.Errorf("this process cannot be parked for a snapshot, because it could not see that it was restored "+
			"(kcmp, which CRIU needs too: %w)", err)
	}
	if s.running != nil || len(s.queue) > 0 || s.asking || s.lending != nil || len(s.gives) > 0 || s.wakes {
		return cuda.Refuse(cuda.NotReady, "the process cannot be parked yet: it is doing something else; try again")
	}
	return c.busy()
}

// park parks the thread for the first client that has asked for it. The client has its reply before that.
func (s *Server) park(now time.Time) {
	i := slices.IndexFunc(s.clients, func(c *connection) bool { return c.parks != nil && !c.gone })
	if i < 0 {
		return
	}
	c := s.clients[i]
	request := *c.parks
	c.parks, c.lease = nil, control.Seconds(request.Lease)
	if err := s.mayPark(c); err != nil {
		c.answer(*failed(&control.Reply{ID: request.ID}, err))
		return
	}
	c.answer(control.Reply{ID: request.ID, OK: true})
	if c.write(now); len(c.out) > 0 || c.gone { // a client that does not read its replies
		c.gone = true
		return
	}
	for silent := time.Duration(0); ; silent += parkedLook { // time that the thread stands still in CRIU does not count
		events := []unix.PollFd{{Fd: int32(c.descriptor), Events: unix.POLLIN}}
		n, _ := unix.Poll(events, int(parkedLook.Milliseconds()))
		if shared, err := s.process.SharesTable(); err == nil && shared {
			s.restored(c, request.User)
			return
		} else if n > 0 {
			return
		} else if c.lease > 0 && silent >= c.lease {
			c.fail(fmt.Errorf("this client was silent for %v while the process was parked for it (stopped?): the process goes on",
				c.lease))
			return
		}
	}
}

// restored gives the thread a table of its own again. Nothing is closed: the numbers stand for files of the program.
func (s *Server) restored(parking *connection, user string) {
	for s.process.OwnTable() != nil { // there was room at the start
		time.Sleep(backOff)
	}
	now := time.Now()
	s.missing = append(s.missing, s.held.Numbers()...)
	s.held.Forget()
	s.socket, s.aside, s.keeper = Socket{Descriptor: -1}, -1, -1
	s.keep(parking, control.SteerRequest{User: user}, now)
	for _, c := range s.clients {
		if c.lent != nil {
			c.lent.passed = -1
		}
		c.descriptor, c.passed, c.gone = -1, -1, true
	}
	s.leave()
	for s.listen(clientPatience) != nil {
		time.Sleep(backOff)
	}
}

// contents lists what the thread holds.
func (s *Server) contents() (all []control.Held) {
	for _, number := range s.held.Numbers() {
		one := control.Held{Number: number}
		_ = s.held.Use(number, func(descriptor int) error {
			var found unix.Stat_t
			err := unix.Fstat(descriptor, &found)
			one.Bytes = uint64(found.Size)
			return err
		})
		all = append(all, one)
	}
	return all
}

// awaits reports whether a client gives a restored process a descriptor that it awaits.
func (s *Server) awaits(r control.Request) bool {
	set, ok := r.(control.SetRequest)
	return ok && set.Op == control.Put && set.Set == 0 && slices.Contains(s.missing, set.Held)
}

// arrived notes that a descriptor has come that the process awaited.
func (s *Server) arrived(number uint64) {
	s.missing = slices.DeleteFunc(s.missing, func(n uint64) bool { return n == number })
}

// renumber has the process await parts of sets by the numbers that they have here.
func (s *Server) renumber(sets []control.Adopted) {
	for _, set := range sets {
		numbers := set.Numbers()
		for i, number := range s.missing {
			s.missing[i] = cmp.Or(numbers[number], number)
		}
	}
}

// errAwaits refuses to resume what is not here.
func (s *Server) errAwaits() error {
	if len(s.missing) == 0 {
		return nil
	}
	return fmt.Errorf("this process was restored from a snapshot, and its tms restore has ended before it gave the process "+
		"its contents (%d files are missing): end the process, and run tms restore again", len(s.missing))
}
