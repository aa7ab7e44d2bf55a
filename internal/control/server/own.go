package server

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// A process reaches its own socket's thread by a second address, which the kernel has made up (an abstract one), because
// contents are not to depend on what becomes of a directory: its mode, its file system, or that it is there at all.

// ownAddresses has the address by the directories of the process. Tests have several of both; a program may change its
// directories, but not the address.
var ownAddresses sync.Map

// ownAddress returns the address by the directories, or else the only one that there is.
func ownAddress(directories Directories) (name string, has bool) {
	if found, has := ownAddresses.Load(keyOf(directories)); has {
		return found.(string), true
	}
	count := 0
	ownAddresses.Range(func(_, found any) bool {
		name, count = found.(string), count+1
		return true
	})
	return name, count == 1
}

func keyOf(directories Directories) [2]string {
	runtime, temporary := directories()
	return [2]string{runtime, temporary}
}

// listenAside makes the second address, once. (bind, without a path) Errors: a refusal.
func (s *Server) listenAside() error {
	if s.aside >= 0 {
		return nil
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return cuda.Refuse(cuda.OperatingSystem, "a socket cannot be made: %w", err)
	}
	var name string
	if err = unix.Bind(socket, &unix.SockaddrUnix{}); err == nil {
		if err = unix.Listen(socket, unix.SOMAXCONN); err == nil {
			name, err = nameOf(socket)
		}
	}
	if err != nil {
		_ = unix.Close(socket)
		return cuda.Refuse(cuda.OperatingSystem, "a socket of the process's own cannot be made: %w", err)
	}
	s.aside = socket
	ownAddresses.Store(keyOf(s.process.Directories), name)
	return nil
}

// nameOf returns a socket's address, which connect writes into: so each call makes its own of the name.
func nameOf(socket int) (string, error) {
	address, err := unix.Getsockname(socket)
	if err != nil {
		return "", err
	}
	bound, ok := address.(*unix.SockaddrUnix)
	if !ok {
		return "", unix.EAFNOSUPPORT
	}
	return bound.Name, nil
}

// findOwn connects to the second address of this process. Another process may have it in another network namespace.
func findOwn(directories Directories) (socket int, err error) {
	name, has := ownAddress(directories)
	if !has {
		return -1, unix.ENOENT
	}
	if socket, err = connectTo(&unix.SockaddrUnix{Name: name}, answerWithin); err != nil {
		return -1, err
	}
	peer, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && int(peer.Pid) == unix.Getpid() {
		return socket, nil
	}
	_ = unix.Close(socket)
	return -1, errors.New("another process has the address")
}

// spares are numbers of the process's own table, for what must come back even if the program has used up all others:
// a connection, and the descriptor that comes. The program may close them, and use the numbers: then they are not ours.
var spares struct {
	sync.Mutex
	of [spareCount]spare
}

const spareCount = 3

type spare struct {
	number      int // 0: there is none
	device, ino uint64
}

// spareSome makes the spare numbers that are missing, as far as there is room. (memfd_create)
func spareSome() {
	spares.Lock()
	defer spares.Unlock()
	for i := range spares.of {
		s := &spares.of[i]
		if s.isOurs() {
			continue
		}
		*s = spare{}
		number, err := unix.MemfdCreate("tms-spare", unix.MFD_CLOEXEC)
		var made unix.Stat_t
		if err != nil || number == 0 || unix.Fstat(number, &made) != nil {
			return
		}
		*s = spare{number, uint64(made.Dev), made.Ino}
	}
}

func (s *spare) isOurs() bool {
	var found unix.Stat_t
	return s.number > 0 && unix.Fstat(s.number, &found) == nil && uint64(found.Dev) == s.device && found.Ino == s.ino
}

// useSpares gives the numbers up, and reports whether there were any.
func useSpares() (some bool) {
	spares.Lock()
	defer spares.Unlock()
	for i := range spares.of {
		if s := &spares.of[i]; s.isOurs() {
			some = unix.Close(s.number) == nil || some
		}
		spares.of[i] = spare{}
	}
	return some
}

// askSelf asks the process's own socket, and returns the reply and the
// descriptor that came, or -1.
func askSelf(directories Directories, r control.Request, descriptor int) (reply control.Reply, came int, err error) {
	for {
		reply, came, err = ask(answerWithin, directories, unix.Getpid(), r, descriptor)
		full := errors.Is(err, unix.EMFILE) || err == nil && reply.OK && came < 0 && r.Op == control.Lend
		if !full || !useSpares() {
			break
		}
	}
	if r.Op == control.Put && err == nil {
		spareSome()
	} else if r.Op == control.Close && err == nil && reply.OK && reply.Bytes == 0 { // nothing is kept any longer
		useSpares()
	}
	return reply, came, err
}
