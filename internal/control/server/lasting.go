package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/vmm/stats"
)

// A pause that a client keeps outlasts the client. A connection that is never among the clients then stands for it, with
// the client's rights, until a resume or until its time is over. So no command has to stay alive, and nothing that ends
// one leaves a pause without an end.

// standIn is what a connection has that stands for a lasting pause.
type standIn struct {
	lasting *control.LastingPause // nil for a client
	over    bool                  // its time is over, and the process tries to resume the tags that are due
	due     []string              // tags
}

// words says who a client is.
func (c *connection) words() string {
	switch {
	case c.lasting != nil:
		return c.lasting.Words()
	case c.pid > 0:
		return fmt.Sprintf("a tms command (user %d, process %d)", c.uid, c.pid)
	}
	return fmt.Sprintf("a tms command (user %d)", c.uid)
}

// keep makes what a client has paused outlast it. Of several such pauses, the last decides about what it is for.
func (s *Server) keep(c *connection, r control.SteerRequest, now time.Time) {
	stands := &connection{descriptor: -1, standIn: standIn{lasting: &control.LastingPause{
		User: cmp.Or(r.User, strconv.Itoa(c.uid)), UID: c.uid, PID: c.pid, Since: float64(now.UnixMicro()) / 1e6,
		Until: r.Until, To: r.Lent}}}
	if r.Own {
		s.release(s.rights.Keep(c, stands, nil))
		s.rights.Forget(stands)
		return
	}
	s.release(s.rights.Keep(c, stands, s.lasting))
	s.lasting = append(s.lasting, stands)
	s.endLasting("")
	s.publish()
	if slices.Contains(s.lasting, stands) {
		s.process.Lasts(*stands.lasting)
	}
}

// paused notes what a client's pause has taken, and that the program must not take it back.
func (s *Server) paused(t *Task, outcome *Outcome) {
	s.rights.Took(t.client, outcome.Took)
	if outcome.Reply.OK {
		s.rights.Paused(t.client, t.Tag)
		return
	}
	s.rights.Failed(t.client, slices.DeleteFunc(slices.Clone(outcome.Took), func(tag string) bool {
		return tag == rights.Rest
	}))
}

// publish tells the program's threads what they must not take back.
func (s *Server) publish() { s.outside.publish(s.rights.Bars(), false) }

// endLends has the process take back what was lent until now, and forgets what the program has taken back to end.
func (s *Server) endLends(now time.Time) {
	for _, c := range s.outside.takeResumed() {
		s.rights.Forget(c)
		s.endLasting("")
		s.publish()
	}
	for _, c := range s.lasting {
		if c.lasting.Until > 0 && !c.over && !now.Before(c.lasting.End()) {
			orphaned := s.rights.Leave(c)
			c.over, c.due = true, orphaned.Due
			s.release(orphaned)
			s.publish()
			s.endLasting("the time of the lend is over")
		}
	}
}

// endLasting forgets lasting pauses that keep nothing any longer, and tells the process why when none is left.
func (s *Server) endLasting(why string) {
	before, due := len(s.lasting), s.rights.Due()
	s.lasting = slices.DeleteFunc(slices.Clone(s.lasting), func(c *connection) bool {
		c.due = slices.DeleteFunc(c.due, func(tag string) bool { // both are sorted
			_, is := slices.BinarySearch(due, tag)
			return !is
		})
		return !s.rights.Has(c) && len(c.due) == 0
	})
	if before > 0 && len(s.lasting) == 0 && why != "" {
		s.process.LastsNoMore(why)
	}
}

// cannotResume begins the line about memory that is to come back and cannot yet.
func (s *Server) cannotResume() string {
	for _, c := range s.lasting {
		if c.over {
			return fmt.Sprintf("the time of %s is over, but there is no room yet, so this program waits until there is "+
				"(tms ps --bytes shows who has the memory): ", c.lasting.Words())
		}
	}
	return "what was paused of this process cannot be resumed yet: "
}

// pausedBy is what a status says of lasting pauses.
func (s *Server) pausedBy() (all []control.LastingPause) {
	for _, c := range s.lasting {
		pause := *c.lasting
		pause.Awaits = len(s.missing)
		for _, b := range s.rights.Bars() {
			if b.Client == c && !b.All {
				for _, tag := range slices.Sorted(maps.Keys(b.Tags)) {
					pause.Tags = append(pause.Tags, stats.TagText(tag))
				}
			}
		}
		for _, tag := range c.due {
			pause.Tags = append(pause.Tags, stats.TagText(tag))
		}
		all = append(all, pause)
	}
	return all
}

// Outside returns what the program must not take back.
func (s *Server) Outside() *Outside { return &s.outside }
