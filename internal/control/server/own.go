package server

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
	"tms/vmm/cuda"
)

// A process reaches its own socket's thread by a second address, which the kernel has made up (an abstract one),
// because contents must not depend on a directory: on its mode, on its file system, or on its existence.

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
	if err == nil && int(peer.Pid) == os.Getpid() {
		return socket, nil
	}
	_ = unix.Close(socket)
	return -1, errors.New("another process has the address")
}

// spareTime is how long a request waits for another thread to give back the spare number that it has taken.
const spareTime = time.Second / 4

// askSelf asks the process's own socket, and returns the reply and the descriptor that came, or -1.
func askSelf(directories Directories, r control.Request, descriptor int) (reply control.Reply, came int, err error) {
	scarce, needs := false, 1 // a connection
	if r.Operation() == control.Lend {
		needs = 2
	}
	for start := time.Now(); ; {
		reply, came, err = AskWithin(answerWithin, directories, os.Getpid(), r, descriptor)
		full := errors.Is(err, unix.EMFILE) || err == nil && reply.OK && came < 0 && r.Operation() == control.Lend
		if full && err == nil {
			err = cuda.Refuse(cuda.OperatingSystem, "there is no room for a descriptor (ulimit -n): %w", unix.EMFILE)
		}
		if !full || time.Since(start) > spareTime {
			break
		}
		if !descriptors.UseSpares(needs) {
			time.Sleep(time.Millisecond)
			continue
		}
		scarce = true
	}
	if scarce && came >= 0 {
		descriptors.UseSpares(1) // for the driver
	}
	if r.Operation() == control.Put && err == nil {
		descriptors.FillSpares()
	} else if r.Operation() == control.Close && err == nil && reply.OK && reply.Bytes == 0 { // nothing is held any longer
		descriptors.DropSpares()
	}
	return reply, came, err
}
