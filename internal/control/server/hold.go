package server

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
)

// The socket's thread holds descriptors for the process and for the next keeper. It has a table of descriptors of its
// own, so the program cannot close them, no child has them, and they take no number from the program.

// Held is the process's descriptors.Holder, for its other threads. The socket's thread has the Holder, so each call is a
// request to the process's own socket. The thread runs from the first Keep on.
type Held struct{ server *Server }

// Held returns the process's holder of descriptors.
func (s *Server) Held() Held { return Held{s} }

// Keep holds a copy of a descriptor under a number that it draws. After an error with a number, drop the number: the
// thread may have the copy.
func (h Held) Keep(descriptor int) (number uint64, err error) {
	if err = h.server.Hold(); err != nil {
		return 0, err
	}
	number = descriptors.Number()
	return number, h.Put(number, 0, descriptor)
}

// Put holds a copy of a descriptor.
func (h Held) Put(number, bytes uint64, descriptor int) error {
	put := control.SetRequest{Op: control.Put, Held: number, Bytes: bytes}
	return tellSelf(h.server.process.Directories, put, descriptor)
}

// Copy returns a copy of a descriptor, which the caller closes by Close.
func (h Held) Copy(number uint64) (descriptor int, err error) {
	lend := control.LendRequest{Op: control.Lend, Memory: number}
	reply, descriptor, err := Ask(h.server.process.Directories, os.Getpid(), lend, -1)
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	return descriptor, err
}

// Close closes a descriptor that came to this process, or none: -1. Its number becomes a spare if one is missing.
func (h Held) Close(descriptor int) { closeCame(descriptor) }

func closeCame(descriptor int) {
	if descriptor >= 0 && descriptors.CloseToSpare(descriptor) {
		descriptors.FillSpares() // the one that the driver had
	}
}

// Drop closes the descriptor of a number, if there is one.
func (h Held) Drop(number uint64) error {
	return tellSelf(h.server.process.Directories, control.SetRequest{Op: control.Close, Held: number}, -1)
}

// Give hands an extent of reserved host memory to the keeper, however late that takes it. Without a keeper, the extent
// goes back to the system. After an error it can be called again.
func (h Held) Give(node int, number uint64) error {
	give := control.SetRequest{Op: control.Give, Held: number, Node: &node}
	return tellSelf(h.server.process.Directories, give, -1)
}

// isSelfPut reports whether the process asks itself for what Held has.
func (c *connection) isSelfPut(r control.Request) bool {
	op := r.Operation()
	return c.pid == os.Getpid() && (op == control.Put || op == control.Close || op == control.Give)
}

// leavesRoom refuses a descriptor that leaves too few numbers for clients, because a client must come to resume memory.
// Everything in the thread's table counts, so the descriptor's own number says how full the table is.
func leavesRoom(_, descriptor int) error {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	if descriptor < 0 || err == nil && uint64(descriptor) >= limit.Cur-min(limit.Cur/2, 2*control.MaxClients) {
		return errors.New("there is no room for a descriptor (ulimit -n)")
	}
	return nil
}
