package server

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
)

var errCrowded = fmt.Errorf("%d clients are connected already; try again when one has gone", control.MaxClients)

// seats reports whether there is a seat for one more client, which may then ask for anything.
func (s *Server) seats() bool {
	taken := 0
	for _, c := range s.clients {
		if c.seated {
			taken++
		}
	}
	return taken < control.MaxClients
}

// accept takes new clients of a socket: those of the same user, and root.
func (s *Server) accept(socket int, now time.Time) {
	for {
		descriptor, _, err := unix.Accept4(socket, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			switch err {
			case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
				s.full = now.Add(backOff)
			case unix.EINTR, unix.ECONNABORTED:
				continue
			}
			return
		}
		c := &connection{descriptor: descriptor, passed: -1, ignored: map[uint64][]string{}}
		peer, err := unix.GetsockoptUcred(descriptor, unix.SOL_SOCKET, unix.SO_PEERCRED)
		switch {
		case err != nil || int(peer.Uid) != os.Geteuid() && peer.Uid != 0:
			c.fail(errors.New("the process is another user's"))
		case socket == s.aside && int(peer.Pid) != os.Getpid():
			c.fail(errors.New("this address is the process's own"))
		default:
			c.pid, c.uid, c.since = int(peer.Pid), int(peer.Uid), now
			c.seated, c.gives = s.seats(), len(s.missing) > 0
			s.clients = append(s.clients, c)
			s.retryAt = time.Time{} // it has made room, perhaps
			s.came = true
			continue
		}
		c.write(now)
		_ = unix.Close(descriptor)
	}
}
