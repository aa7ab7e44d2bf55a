package server

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	if err == nil && int(peer.Pid) == unix.Getpid() {
		return socket, nil
	}
	_ = unix.Close(socket)
	return -1, errors.New("another process has the address")
}

// spares are numbers of the process's own table. Contents can then come back even if the program has used up all other
// numbers: they need a connection, the descriptor that comes, and one for the driver. All spares name one empty file,
// so that a file which the program has opened under the same number is not taken for a spare. One spare is never given
// up: with it, each number that was used becomes a spare again without being free in between.
var spares struct {
	sync.Mutex
	of          [spareCount]int // 0 where a spare is missing
	device, ino uint64          // of the file
}

const (
	spareCount = 6
	spareTime  = time.Second / 4 // for another thread to give back the number that it has taken
)

// spareSome makes the spare numbers that are missing, as far as there is room. (memfd_create, fcntl)
func spareSome() {
	spares.Lock()
	defer spares.Unlock()
	for i := range spares.of {
		if isSpare(spares.of[i]) {
			continue
		}
		spares.of[i] = 0
		from := anySpare()
		if from == 0 {
			from, _ = unix.MemfdCreate("tms-spare", unix.MFD_CLOEXEC)
			var made unix.Stat_t
			if from < 0 || unix.Fstat(from, &made) != nil {
				return
			}
			spares.device, spares.ino = uint64(made.Dev), made.Ino
			if from > 0 { // else it is the program's standard input
				spares.of[i] = from
				continue
			}
		}
		number, err := unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 1)
		if from == 0 {
			_ = unix.Close(from)
		}
		if err != nil {
			return
		}
		spares.of[i] = number
	}
}

// isSpare reports whether a number still names the file. The caller holds the lock, as does that of anySpare.
func isSpare(number int) bool {
	var found unix.Stat_t
	return number > 0 && unix.Fstat(number, &found) == nil && uint64(found.Dev) == spares.device && found.Ino == spares.ino
}

// anySpare returns a spare number, or 0 if there is none.
func anySpare() int {
	for _, number := range spares.of {
		if isSpare(number) {
			return number
		}
	}
	return 0
}

// useSpares makes up to count numbers free, but never the last, and reports whether it freed any.
func useSpares(count int) (some bool) {
	spares.Lock()
	defer spares.Unlock()
	last := anySpare()
	for i, number := range spares.of {
		if count > 0 && number != last && isSpare(number) {
			spares.of[i] = 0
			some = unix.Close(number) == nil || some
			count--
		}
	}
	return some
}

// dropSpares makes all spare numbers free.
func dropSpares() {
	spares.Lock()
	defer spares.Unlock()
	for i, number := range spares.of {
		if isSpare(number) {
			_ = unix.Close(number)
		}
		spares.of[i] = 0
	}
}

// closeOwn closes a descriptor, whose number becomes a spare if one is missing, and reports whether it has. (dup3)
func closeOwn(descriptor int) bool {
	spares.Lock()
	defer spares.Unlock()
	if from := anySpare(); from > 0 && descriptor > 0 {
		for i, number := range spares.of {
			if !isSpare(number) && unix.Dup3(from, descriptor, unix.O_CLOEXEC) == nil {
				spares.of[i] = descriptor
				return true
			}
		}
	}
	_ = unix.Close(descriptor)
	return false
}

// CloseOwn closes a descriptor that came from the process itself, or none: -1.
func CloseOwn(descriptor int) {
	if descriptor >= 0 && closeOwn(descriptor) {
		spareSome() // the one that the driver had
	}
}

// askSelf asks the process's own socket, and returns the reply and the descriptor that came, or -1.
func askSelf(directories Directories, r control.Request, descriptor int) (reply control.Reply, came int, err error) {
	scarce, needs := false, 1 // a connection
	if r.Operation() == control.Lend {
		needs = 2
	}
	for start := time.Now(); ; {
		reply, came, err = ask(answerWithin, directories, unix.Getpid(), r, descriptor)
		full := errors.Is(err, unix.EMFILE) || err == nil && reply.OK && came < 0 && r.Operation() == control.Lend
		if full && err == nil {
			err = cuda.Refuse(cuda.OperatingSystem, "there is no room for a descriptor (ulimit -n): %w", unix.EMFILE)
		}
		if !full || time.Since(start) > spareTime {
			break
		}
		if !useSpares(needs) {
			time.Sleep(time.Millisecond)
			continue
		}
		scarce = true
	}
	if scarce && came >= 0 {
		useSpares(1) // for the driver
	}
	if r.Operation() == control.Put && err == nil {
		spareSome()
	} else if r.Operation() == control.Close && err == nil && reply.OK && reply.Bytes == 0 { // nothing is kept any longer
		dropSpares()
	}
	return reply, came, err
}
