package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
	"tms/internal/machine/process"
	"tms/vmm/cuda"
)

// A process asks another process of its user, or sends itself a descriptor. directories is its Process.Directories.

// Directories returns XDG_RUNTIME_DIR and TMPDIR, as the process has them.
type Directories = func() (runtime, temporary string)

// answerWithin is how long another process that runs may take to answer.
const answerWithin = 5 * time.Second

// maxLine is the most bytes of a line, which may list the chunks of many sets.
const maxLine = 16 << 20

// Ask sends a request, with a descriptor unless that is -1, and returns the reply and the descriptor that came, or -1.
func Ask(directories Directories, pid int, r control.Request,
	descriptor int) (reply control.Reply, came int, err error) {
	if pid == os.Getpid() {
		return askSelf(directories, r, descriptor)
	}
	return AskWithin(answerWithin, directories, pid, r, descriptor)
}

// AskWithin is Ask without spare numbers. If the process is stopped, it has patience to answer.
func AskWithin(patience time.Duration, directories Directories, pid int, r control.Request,
	descriptor int) (reply control.Reply, came int, err error) {
	came = -1
	err = exchange(patience, directories, pid, r, descriptor, func(answered control.Reply, descriptor int) error {
		reply, came = answered, descriptor
		return nil
	})
	if err != nil && came >= 0 {
		_ = unix.Close(came)
		came = -1
	}
	return reply, came, err
}

// TakeWithin asks the keeper for a descriptor, which is this process's once keep has a copy of it.
func TakeWithin(patience time.Duration, directories Directories, r control.SetRequest,
	keep func(descriptor int) error) error {
	r.Confirm = true
	return exchange(patience, directories, control.Keeper, r, -1, func(reply control.Reply, came int) error {
		switch {
		case !reply.OK:
			return cuda.Refuse(cuda.Result(reply.Code), "%s", reply.Error)
		case came < 0:
			return cuda.Refuse(cuda.OperatingSystem, "there is no room for a descriptor (ulimit -n)")
		}
		defer func() { _ = unix.Close(came) }()
		return keep(came)
	})
}

// exchange sends a request, with a descriptor unless that is -1, and has use look at the reply and take the descriptor
// that came, or -1. What the request asks to confirm is confirmed after that.
func exchange(patience time.Duration, directories Directories, pid int, r control.Request, descriptor int,
	use func(control.Reply, int) error) error {
	connect := func() (int, error) { return find(directories, pid, patience) }
	socket, err := -1, error(unix.ENOENT)
	if pid == os.Getpid() {
		socket, err = findOwn(directories)
	}
	if err != nil && !errors.Is(err, unix.EMFILE) {
		socket, err = connect()
	}
	if err != nil && pid != control.Keeper && !errors.Is(err, unix.EMFILE) { // keepers of all users have one name
		socket, err = control.Search(pid, connect)
	}
	if err != nil {
		return err
	}
	if pid == os.Getpid() {
		defer descriptors.CloseToSpare(socket)
	} else {
		defer func() { _ = unix.Close(socket) }()
	}
	if err = Send(socket, r.Sent(r.Identity()), descriptor, 0); err != nil {
		return err
	}
	begun := time.Now()
	if pid == os.Getpid() {
		wake()
	} else {
		await(socket, begun, patience)
	}
	line, came, err := Receive(socket) // a connection that ends before it is read is given up
	if errors.Is(err, unix.EAGAIN) {
		err = cuda.Refuse(cuda.Timeout, "no answer within %v (stopped?)", time.Since(begun).Round(time.Millisecond))
	}
	var reply control.Reply
	if err == nil {
		err = json.Unmarshal(line, &reply)
	}
	if err != nil {
		_ = unix.Close(came)
		return err
	}
	of, _ := r.(control.SetRequest)
	if err = use(reply, came); err == nil && of.Confirm && reply.OK {
		err = again(func() error { return unix.Sendmsg(socket, []byte("\n"), nil, nil, unix.MSG_NOSIGNAL) })
	}
	return err
}

// await waits until something comes, or the peer is found to be stopped after patience, or answerWithin has passed: a
// peer that only waits for the processor does answer.
func await(socket int, begun time.Time, patience time.Duration) {
	events := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}
	for {
		ready, err := unix.Poll(events, int(patience.Milliseconds()))
		if ready > 0 || err != nil && !errors.Is(err, unix.EINTR) || time.Since(begun) >= answerWithin {
			return
		}
		peer, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || peer.Pid <= 0 || time.Since(begun) >= patience && process.Stopped(int(peer.Pid)) {
			return
		}
	}
}

// Confirmed waits until a client has confirmed that it got a reply, and reports whether it has. A late confirmation
// does not count: nothing that the client sends later arrives.
func Confirmed(client int) bool {
	var line [1]byte
	read := func(flags int) (n int) {
		_ = again(func() (err error) {
			n, _, err = unix.Recvfrom(client, line[:], flags)
			return err
		})
		return n
	}
	if read(0) > 0 {
		return true
	}
	_ = unix.Shutdown(client, unix.SHUT_RD)
	return read(unix.MSG_DONTWAIT) > 0
}

// tellSelf sends the process's own socket a request, with a descriptor unless that is -1.
func tellSelf(directories Directories, r control.Request, descriptor int) error {
	reply, came, err := Ask(directories, os.Getpid(), r, descriptor)
	closeCame(came)
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	return err
}

// Tell sends a request without waiting, not even for an answer.
func Tell(directories Directories, pid int, r control.Request) error {
	socket, err := find(directories, pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	return Send(socket, r.Sent(r.Identity()), -1, unix.MSG_DONTWAIT)
}

// Ended reports whether a process, or the keeper, has left its socket behind.
func Ended(directories Directories, pid int) bool {
	socket, err := find(directories, pid, 0)
	_ = unix.Close(socket) // -1: there is none
	return errors.Is(err, unix.ECONNREFUSED)
}

// Send sends a request or reply, with a descriptor unless that is -1.
func Send(socket int, message any, descriptor, flags int) error {
	line := control.Line(message)
	return again(func() error {
		_, err := descriptors.Send(socket, line, descriptor, flags)
		return err
	})
}

// Receive reads a line, without its end, and the descriptor that comes with it, or -1.
func Receive(socket int) (line []byte, descriptor int, err error) {
	descriptor = -1
	buffer := make([]byte, 4096)
	for len(line) == 0 || line[len(line)-1] != '\n' {
		var n int
		if err := again(func() (err error) {
			n, err = descriptors.Receive(socket, buffer, &descriptor)
			return err
		}); err != nil {
			return line, descriptor, err
		}
		if n == 0 || len(line) > maxLine {
			return line, descriptor, errors.New("the line has no end")
		}
		line = append(line, buffer[:n]...)
	}
	return bytes.TrimSpace(line), descriptor, nil
}

// find connects to the control socket of a process, whichever directory has it. It waits up to patience for the process
// to accept, and later sends and receives wait no longer. With patience 0 none of them waits.
func find(directories Directories, pid int, patience time.Duration) (socket int, err error) {
	user := os.Geteuid()
	err = fs.ErrNotExist
	var others error
	note := func(failed error) { // it is perhaps where it cannot be reached now
		if errors.Is(err, fs.ErrNotExist) || !absent(failed) {
			err = failed
		}
	}
	runtimeDir, temporary := directories()
	for _, directory := range control.AllDirectories(runtimeDir, temporary, user) {
		if refused := control.CheckDirectory(directory, user); errors.Is(refused, control.ErrAnothers) {
			others = refused
			continue
		} else if refused != nil {
			note(refused)
			continue
		}
		found, failed := connect(directory, pid, patience)
		if failed != nil {
			note(failed)
			continue
		}
		peer, err := unix.GetsockoptUcred(found, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil && int(peer.Uid) == user && (int(peer.Pid) == pid || pid == control.Keeper) {
			return found, nil
		}
		_ = unix.Close(found)
	}
	if others != nil && errors.Is(err, fs.ErrNotExist) {
		err = others
	}
	if pid == control.Keeper {
		return -1, cuda.Refuse(cuda.NotSupported, "the keeper has no socket that could be found (%w)", err)
	}
	return -1, cuda.Refuse(cuda.NotSupported, "process %d has no control socket that could be found (%w): it must be "+
		"of the same user and container, and have the same XDG_RUNTIME_DIR and TMPDIR", pid, err)
}

// absent reports whether a connection failed because no process of this user listens.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, control.ErrAnothers)
}

func connect(directory string, pid int, patience time.Duration) (int, error) {
	descriptor, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(descriptor) }()
	return connectTo(&unix.SockaddrUnix{Name: control.Address(directory, descriptor, pid)}, patience)
}

func connectTo(address unix.Sockaddr, patience time.Duration) (int, error) {
	kind := unix.SOCK_STREAM | unix.SOCK_CLOEXEC
	if patience == 0 {
		kind |= unix.SOCK_NONBLOCK
	}
	socket, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return -1, err
	}
	err = Limit(socket, patience)
	for start := time.Now(); err == nil; time.Sleep(time.Millisecond) {
		err = again(func() error { return unix.Connect(socket, address) })
		if !errors.Is(err, unix.EAGAIN) || time.Since(start) >= patience { // EAGAIN: too many at once
			break
		}
		err = nil
	}
	if err != nil {
		_ = unix.Close(socket)
		return -1, err
	}
	return socket, nil
}

// Limit bounds the time that sends and receives wait. A patience of 0 means no bound.
func Limit(socket int, patience time.Duration) error {
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	return errors.Join(unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

// again makes a system call until no signal interrupts it.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
