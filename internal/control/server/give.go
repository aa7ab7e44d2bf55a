package server

import (
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
)

// Extents of reserved host memory go back to the keeper one after another, however long it takes to answer. The keeper
// has an extent once it answers, and does not have it if it closes the connection without an answer. So no extent is
// given twice.

const (
	giveAgain = 100 * time.Millisecond // between tries to reach a keeper that is busy or cannot be reached
	givesUp   = 10 * time.Second       // without a socket: a keeper whose directory was removed soon makes another
)

// extent is reserved host memory that the keeper is to get. Its descriptor is leaving until the keeper has it.
type extent struct {
	node   int
	number uint64
}

// give queues an extent, unless that was given before.
func (s *Server) give(r control.SetRequest) error {
	if r.Node == nil {
		return errors.New("a give needs a node")
	}
	if s.held.Leave(r.Held) {
		s.gives = append(s.gives, extent{*r.Node, r.Held})
	}
	return nil
}

// giveNext sends the first extent of the queue. Once the keeper has ended, all go back to the system.
func (s *Server) giveNext(now time.Time) {
	for len(s.gives) > 0 && s.keeper < 0 && !now.Before(s.giveAt) {
		socket, err := find(s.process.Directories, control.Keeper, 0)
		if err == nil {
			first := s.gives[0]
			give := control.SetRequest{Op: control.Give, Node: &first.node}.Sent(0)
			err = s.held.Use(first.number, func(descriptor int) error {
				return Send(socket, give, descriptor, unix.MSG_DONTWAIT)
			})
			if err == nil {
				s.keeper, s.unfound = socket, time.Time{}
				return
			}
			_ = unix.Close(socket)
		}
		if !absent(err) {
			s.unfound = time.Time{}
		} else if s.unfound.IsZero() {
			s.unfound = now
		}
		dropped := errors.Is(err, unix.EBADF) // by the process itself
		if dropped || errors.Is(err, unix.ECONNREFUSED) || !s.unfound.IsZero() && now.Sub(s.unfound) > givesUp {
			s.given()
			continue
		}
		s.giveAt = now.Add(giveAgain)
	}
}

// heardFromKeeper reads the keeper's answer.
func (s *Server) heardFromKeeper(now time.Time) {
	buffer := make([]byte, 4096)
	n, err := unix.Read(s.keeper, buffer)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	_ = unix.Close(s.keeper)
	s.keeper = -1
	if err == nil && n > 0 && json.Valid(buffer[:n]) { // or it refuses it
		s.given()
		return
	}
	s.giveAt = now.Add(giveAgain)
}

// given drops the first extent of the queue: the keeper has it, or there is no keeper.
func (s *Server) given() {
	_ = s.held.Drop(s.gives[0].number)
	s.gives = s.gives[1:]
}
