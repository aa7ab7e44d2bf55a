package server

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/guard"
	"tms/internal/control"
	"tms/vmm/cuda"
)

// The socket's thread, and the socket's place in a directory.

// start is what the thread is asked for: to listen to others, or to the process alone.
type start struct {
	others bool
	answer chan error
}

// Serve returns once the process listens. Errors: a refusal; a later call tries again.
func (s *Server) Serve() error { return s.start(true) }

// Hold returns once the process can have the thread keep its descriptors, whether or not others reach the thread.
// Errors: a refusal; a later call tries again.
func (s *Server) Hold() error { return s.start(false) }

func (s *Server) start(others bool) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.listens || s.holding && !others {
		return nil
	}
	if s.asked == nil {
		if err := s.process.Reserve(); err != nil {
			return err
		}
		asked := make(chan start, 1)
		began := make(chan error, 1)
		s.process.Hand(func() error { return s.thread(began, asked) }, func(err error) { began <- err })
		if err := <-began; err != nil {
			return err
		}
		s.asked = asked
	}
	asks := start{others, make(chan error, 1)}
	s.asked <- asks
	if s.holding { // it looks there after each request
		_ = tellSelf(s.process.Directories, control.SetRequest{Op: control.Close}, -1)
	}
	err := <-asks.answer
	if err == nil {
		s.listens, s.holding = s.listens || others, true
	}
	return err
}

// thread never returns once it has its own table: other goroutines would run on the thread.
func (s *Server) thread(began chan<- error, asked <-chan start) error {
	runtime.LockOSThread()
	if err := s.process.OwnTable(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	began <- nil
	for asks := range asked {
		err := s.begun(asks)
		for err == nil {
			s.process.Log(guard.Call(s.loop)) // only a panic ends it
			for _, c := range s.clients {
				c.gone = true
			}
			time.Sleep(backOff)
		}
	}
	return nil
}

// begun does what the thread was asked for.
func (s *Server) begun(asks start) error {
	err := guard.Call(func() error {
		if asks.others {
			return s.listen(clientPatience)
		}
		return s.listenAside()
	})
	asks.answer <- err
	return err
}

// listen makes the socket, and waits up to patience for a directory's lock. Errors: a refusal.
func (s *Server) listen(patience time.Duration) error {
	socket, err := Listen(s.process.Directories, os.Getpid(), patience)
	if err == nil {
		s.socket, s.looked = socket, time.Now()
		_ = s.listenAside() // without it, the process finds itself as others do
		s.process.Bound(socket.path, socket.made.Dev, socket.made.Ino)
	}
	return err
}

// Socket is one that listens, in its directory.
type Socket struct {
	Descriptor int
	path       string
	made       unix.Stat_t
}

// ErrAnswered: another process, or another keeper, listens already.
var ErrAnswered = errors.New("another process answers there (of the same number, in another container?)")

// Listen makes the socket of a process, or of the keeper, and waits up to patience for a directory's lock. It removes
// what an earlier process of the same number has left there. Errors: that of socket, bind or listen, or ErrAnswered for
// the keeper.
func Listen(directories Directories, pid int, patience time.Duration) (Socket, error) {
	user := os.Geteuid()
	var refused []error
	runtimeDir, temporary := directories()
	for _, directory := range control.Directories(runtimeDir, temporary, user) {
		for start := time.Now(); pid == control.Keeper && control.LostKeeper(directory) &&
			time.Since(start) < min(patience, control.Look); {
			time.Sleep(10 * time.Millisecond) // it makes the directory again, and comes back with its sets
		}
		err := control.MakeDirectory(directory, user)
		if err == nil {
			var socket Socket
			socket, err = bind(directory, pid, patience)
			if err == nil || pid == control.Keeper && errors.Is(err, ErrAnswered) {
				return socket, err
			}
		}
		refused = append(refused, err)
	}
	return Socket{}, cuda.Refuse(cuda.OperatingSystem, "%s",
		strings.ReplaceAll(errors.Join(refused...).Error(), "\n", "; "))
}

// bind makes the socket in a directory. It holds the directory's lock, so that no other process removes the socket.
func bind(directory string, pid int, patience time.Duration) (made Socket, err error) {
	lock, err := control.LockDirectory(directory, patience)
	if err != nil {
		return made, err
	}
	defer func() { _ = unix.Close(lock) }()
	made.path = directory + "/" + control.Name(pid)
	address := &unix.SockaddrUnix{Name: control.Address(directory, lock, pid)}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return made, fmt.Errorf("a socket cannot be made: %w", err)
	}
	if err = unix.Bind(socket, address); errors.Is(err, unix.EADDRINUSE) {
		if control.Answered(address.Name) {
			err = ErrAnswered
		} else if err = unix.Unlink(address.Name); err == nil {
			err = unix.Bind(socket, address)
		}
	}
	if err == nil {
		err = unix.Listen(socket, unix.SOMAXCONN)
	}
	if err == nil {
		err = unix.Lstat(address.Name, &made.made)
	}
	if err != nil {
		_ = unix.Close(socket)
		return made, fmt.Errorf("%s cannot be bound: %w", made.path, err)
	}
	made.Descriptor = socket
	return made, nil
}

// Lost reports whether no path leads to the socket any longer: $XDG_RUNTIME_DIR is removed with the user's last login.
func (s *Socket) Lost() bool {
	var found unix.Stat_t
	err := unix.Lstat(s.path, &found)
	if err != nil { // else the process may not look there, and others may
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
	}
	return found.Dev != s.made.Dev || found.Ino != s.made.Ino
}

// look binds the socket again when it is lost. It never waits; what cannot be done is tried again at the next look.
func (s *Server) look(now time.Time) {
	if now.Sub(s.looked) < control.Look {
		return
	}
	s.looked = now
	s.process.Look()
	if s.socket.path == "" || !s.socket.Lost() {
		return
	}
	s.accept(s.socket.Descriptor, now) // clients that came before it was gone
	if before := s.socket.Descriptor; s.listen(0) == nil {
		_ = unix.Close(before)
	}
}
