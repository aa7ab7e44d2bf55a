package server

import (
	"errors"

	"golang.org/x/sys/unix"

	"tms/internal/control"
)

// The socket's thread keeps descriptors for the next keeper. It has a table of descriptors of its own, so the program
// cannot close them, no child has them, and they take no number from the program.

// held is a descriptor of memory, and the bytes of that memory.
type held struct {
	descriptor int
	bytes      uint64
}

// holds reports whether the process tells itself to keep a descriptor, to close it, or to give it to the keeper.
func (c *connection) holds(r control.Request) bool {
	op := r.Operation()
	return c.pid == unix.Getpid() && (op == control.Put || op == control.Close || op == control.Give)
}

func (s *Server) hold(c *connection, r control.SetRequest) error {
	if r.Op == control.Give {
		return s.give(c, r)
	}
	if r.Op == control.Put && (c.passed < 0 || !leavesRoom(c.passed)) {
		return errors.New("there is no room for a descriptor (ulimit -n)")
	}
	if before, has := s.held[r.Number]; has {
		_ = unix.Close(before.descriptor)
		delete(s.held, r.Number)
	}
	if r.Op == control.Put {
		s.held[r.Number], c.passed = held{c.passed, r.Bytes}, -1
	}
	c.answer(control.Reply{ID: r.ID, OK: true, Bytes: uint64(len(s.held))}) // how many are kept
	return nil
}

// leavesRoom reports whether a new descriptor leaves numbers for clients, because a client must come to resume memory.
func leavesRoom(descriptor int) bool {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return err != nil || uint64(descriptor) < limit.Cur-min(limit.Cur/2, 2*control.MaxClients)
}

// lendHeld answers with a copy of a descriptor that is kept.
func (c *connection) lendHeld(r control.LendRequest, h held) error {
	descriptor, err := unix.FcntlInt(uintptr(h.descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		c.lent = &lend{passed: descriptor}
		c.answer(control.Reply{ID: r.ID, OK: true, Bytes: h.bytes, Extent: h.bytes})
	}
	return err
}
