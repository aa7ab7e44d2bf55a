// Package client asks processes over their control sockets, and finds those that have one. Its one noun is the
// connection (Conn), to which what was asked over it belongs: the process undoes that when the connection ends.
package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/machine/process"
	"tms/vmm/cuda"
)

// ErrUnreachable: the process cannot be asked. No process has this number, or it is another user's, does not listen, or
// does not answer.
var ErrUnreachable = errors.New("the process cannot be asked")

// Unreachable is ErrUnreachable, but prints only the reason.
func Unreachable(format string, arguments ...any) error {
	return fmt.Errorf("%w%.0w", fmt.Errorf(format, arguments...), ErrUnreachable)
}

// ErrElsewhere: the process that listens by this number belongs to another PID namespace; here another process has it.
var ErrElsewhere = Unreachable("the process that listens by that number has it in another PID namespace (a " +
	"container): run tms there")

// ErrOthers: the process belongs to another user.
var ErrOthers = errors.New("only that user and root can steer it")

// busyTime is how long a client tries a process with a full queue of clients.
const busyTime = time.Second

// maxReply is the most bytes of a reply; the statistics of a hundred thousand tags take less.
const maxReply = 256 << 20

// Conn is a connection to a process. One goroutine uses it at a time.
type Conn struct {
	Peer       int    // the number of the process here, or 0 if it has none
	Directory  string // of its socket
	Version    int    // of the protocol, as the process has said last
	connection *net.UnixConn
	replies    *bufio.Reader
	passed     *int     // where the descriptor goes that comes with a reply, while one is awaited
	passes     *os.File // goes with the next request
	id         uint64
}

func directories(user int) []string {
	return control.AllDirectories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), user)
}

// List returns the processes of this user that listen, by number, and removes the sockets of dead ones. Errors: those
// of directories that cannot be read. It still returns the processes in the other directories.
func List() ([]int, error) {
	var found []int
	var failed []error
	for _, directory := range directories(os.Geteuid()) {
		err := control.CheckDirectory(directory, os.Geteuid())
		if err == nil {
			err = list(directory, &found)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			failed = append(failed, err)
		}
	}
	slices.Sort(found)
	return found, errors.Join(failed...)
}

// list adds the processes that have a socket in a directory, and those in PID namespaces below this one by their numbers
// here.
func list(directory string, found *[]int) error {
	for _, place := range append(control.Namespaces(directory), directory) {
		entries, err := os.ReadDir(place)
		if err != nil && place == directory {
			return err
		}
		for _, entry := range entries {
			number, ok := control.PID(entry.Name())
			pid := number
			if place != directory {
				pid = 0
			}
			if !ok || slices.Contains(*found, pid) {
				continue
			}
			connection, err := dial(place, number)
			if err == nil {
				if place != directory {
					pid = connection.Peer
				}
				connection.Close()
			}
			switch {
			case errors.Is(err, unix.ECONNREFUSED):
				sweep(place, number)
			case !errors.Is(err, fs.ErrNotExist) && pid > 0:
				*found = append(*found, pid)
			}
		}
	}
	return nil
}

// dial connects to the socket of a process in a directory. When it returns, it is only known that the socket exists:
// even a stopped process can be connected to.
func dial(directory string, pid int) (*Conn, error) {
	descriptor, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(descriptor) }()
	address := &net.UnixAddr{Name: control.Address(directory, descriptor, pid), Net: "unix"}
	connection, err := net.DialUnix("unix", nil, address)
	if err != nil {
		return nil, err
	}
	c := &Conn{connection: connection, Directory: directory}
	c.replies = bufio.NewReader(incoming{c})
	if raw, err := connection.SyscallConn(); err == nil {
		_ = raw.Control(func(descriptor uintptr) {
			if peer, err := unix.GetsockoptUcred(int(descriptor), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				c.Peer = int(peer.Pid)
			}
		})
	}
	return c, nil
}

// sweep removes the socket of a dead process, unless another process of the same number comes to listen there. That one
// binds and listens under the directory's lock, which is on the directory itself, whatever its name. (flock)
func sweep(directory string, pid int) {
	lock, err := control.LockDirectory(directory, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(lock) }()
	if !control.Answered(control.AddressIn(lock, pid)) {
		_ = unix.Unlinkat(lock, control.Name(pid), 0)
	}
}

// Dial connects to a process of this user; root can connect to any user's. Errors: ErrUnreachable, wrapped, with the
// reason; ErrElsewhere; ErrOthers, wrapped.
func Dial(pid int) (*Conn, error) {
	connection, err := Connect(pid)
	if err == nil && connection.Peer != pid {
		connection.Close()
		return nil, ErrElsewhere
	}
	return connection, err
}

// Connect is Dial, but also connects to a process that has the number in another PID namespace. A client may read what
// that process says, but must not change it: here the number means another process. It waits for a process that
// replaces its socket, but not for another user's, whose directory hides whether the process does.
func Connect(pid int) (*Conn, error) {
	connection, err := findSocket(pid)
	if err == nil || errors.Is(err, ErrOthers) {
		return connection, err
	}
	return control.Search(pid, func() (*Conn, error) { return findSocket(pid) })
}

// findSocket connects to the socket of a process, in whichever directory it is.
func findSocket(pid int) (*Conn, error) {
	own := os.Geteuid()
	places := directories(own)
	var entry syscall.Stat_t
	known := syscall.Stat("/proc/"+strconv.Itoa(pid), &entry) == nil // else perhaps it is in another container
	owner := int(entry.Uid)                                          // root even for a process that is not dumpable
	if own == 0 && known && owner != own {
		places = append(places, directories(owner)...)
	}
	var refused error
	var elsewhere *Conn
	for _, directory := range places {
		err := control.CheckDirectory(directory, own)
		if err != nil && own == 0 && known {
			err = control.CheckDirectory(directory, owner)
		}
		var connection *Conn
		if err == nil {
			if connection = below(directory, pid); connection != nil {
				if elsewhere != nil {
					elsewhere.Close()
				}
				return connection, nil
			}
			connection, err = dial(directory, pid)
		}
		for start := time.Now(); errors.Is(err, unix.EAGAIN) && time.Since(start) < busyTime; { // too many at once
			time.Sleep(time.Millisecond)
			connection, err = dial(directory, pid)
		}
		switch {
		case err == nil && connection.Peer == pid:
			if elsewhere != nil {
				elsewhere.Close()
			}
			return connection, nil
		case err == nil && elsewhere == nil:
			elsewhere = connection
		case err == nil:
			connection.Close()
		case errors.Is(err, unix.ECONNREFUSED):
			sweep(directory, pid)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			refused = err
		}
	}
	switch {
	case elsewhere != nil:
		return elsewhere, nil
	case refused != nil:
		return nil, Unreachable("%w", refused)
	case !known && errors.Is(syscall.Kill(pid, 0), unix.ESRCH):
		return nil, Unreachable("there is no such process")
	case known && owner != own && own != 0:
		return nil, Unreachable("it is a process of user %d: %w", owner, ErrOthers)
	}
	if numbers := process.Numbers(pid); len(numbers) > 1 {
		return nil, Unreachable("it is number %s of another PID namespace (a container): run tms there",
			numbers[len(numbers)-1])
	}
	if process.Preloads(pid) {
		return nil, Unreachable("it does not listen yet (tms run and TMS_CONTROL=1 have it listen from its first pausable " +
			"allocation on, and tms.serve() at once), or listens in a directory that this command does not have")
	}
	return nil, Unreachable("it does not listen: start it with tms run or TMS_CONTROL=1, and it listens from its first " +
		"pausable allocation on; or have it call tms.serve()")
}

// Ended reports whether the process has closed the connection, or has said why it is about to. It does not wait, and the
// process may be stopped.
func (c *Conn) Ended() (ended bool) {
	raw, err := c.connection.SyscallConn()
	if err == nil {
		err = raw.Control(func(descriptor uintptr) {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}, 0)
			ended = n > 0
		})
	}
	return ended || err != nil
}

// below connects to a process that listens in a PID namespace below this one, or returns nil.
func below(directory string, pid int) *Conn {
	places := control.Namespaces(directory)
	numbers := process.Numbers(pid)
	if len(places) == 0 || len(numbers) < 2 {
		return nil
	}
	number, _ := strconv.Atoi(numbers[len(numbers)-1])
	for _, place := range places {
		connection, err := dial(place, number)
		if err == nil && connection.Peer == pid {
			return connection
		} else if err == nil {
			connection.Close()
		}
	}
	return nil
}

// Close ends the connection. The process resumes what was paused over it and is to end with it.
func (c *Conn) Close() { _ = c.connection.Close() }

// Stopped reports whether the process is stopped, by a signal or a tracer, and so cannot answer.
func (c *Conn) Stopped() bool { return process.Stopped(c.Peer) }

// Do sends a request and returns the reply, even one that refuses it. If the context ends first, Do closes the
// connection, so that the process withdraws or undoes what was asked. Errors: ErrUnreachable, wrapped, if the process
// ends or does not answer in time; the context's.
func (c *Conn) Do(ctx context.Context, request control.Request) (control.Reply, error) {
	c.id++
	stop := context.AfterFunc(ctx, c.Close)
	// After a failure, too, a process that turns clients away has sent an answer
	failed := c.write(control.Line(request.Sent(c.id)))
	reply, err := c.reply()
	if !stop() { // closed, or about to be, even where the reply has come
		return reply, ctx.Err()
	}
	return c.checked(reply, c.id, failed, err)
}

// checked returns the reply to a request, of which failed says why it may not have been sent, and err why there may be
// no reply.
func (c *Conn) checked(reply control.Reply, id uint64, failed, err error) (control.Reply, error) {
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		return reply, Unreachable("it has ended, or closed the connection")
	case err != nil:
		return reply, Unreachable("%w", err)
	case reply.ID != id && reply.OK:
		return reply, Unreachable("it has answered another request")
	case failed != nil && reply.Error == "":
		return reply, Unreachable("%w", failed)
	}
	return reply, nil
}

// DoAhead is Do for a request that takes memory as it comes (control.SteerRequest.Ahead). A second request says how that
// ends, Complete or Undo; DoAhead sends it when it gets it, unless the first request has been answered by then.
func (c *Conn) DoAhead(ctx context.Context, request control.SteerRequest, ends <-chan control.SteerRequest) (
	control.Reply, error) {
	first := c.id + 1
	c.id += 2
	stop := context.AfterFunc(ctx, c.Close)
	failed := c.write(control.Line(request.Sent(first)))
	answered, sent := make(chan struct{}), make(chan bool, 1)
	go func() {
		select {
		case end := <-ends:
			_ = c.write(control.Line(end.Sent(first + 1))) // if it fails, so does the read
			sent <- true
		case <-answered:
			sent <- false
		}
	}()
	reply, err := c.reply()
	second := err == nil && reply.ID == first+1 // which was sent before, so its own answer may come first
	if second {
		reply, err = c.reply()
	}
	close(answered)
	if <-sent && !second && err == nil {
		_, err = c.reply()
	}
	if !stop() {
		return reply, ctx.Err()
	}
	return c.checked(reply, first, failed, err)
}

func (c *Conn) reply() (reply control.Reply, err error) {
	var line []byte
	for {
		part, err := c.replies.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return reply, err
		}
		if len(line) > maxReply {
			return reply, fmt.Errorf("its reply is longer than %d bytes", maxReply)
		}
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return reply, errors.New("its reply is not understood")
	}
	c.Version = reply.Version
	for _, words := range []*string{&reply.Error, &reply.NCCL, &reply.Note, &reply.Stays} {
		*words = readable.Printable(strings.ReplaceAll(*words, "\n", "; "))
	}
	return reply, nil
}

// Lend returns a copy of a descriptor that the process holds, by its number.
func (c *Conn) Lend(ctx context.Context, number uint64) (*os.File, error) {
	came := -1
	c.passed = &came
	defer func() { c.passed = nil }()
	reply, err := c.Do(ctx, control.LendRequest{Op: control.Lend, Memory: number})
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	if err == nil && came < 0 {
		err = errors.New("there is no room for a descriptor (ulimit -n)")
	}
	if err != nil {
		_ = unix.Close(came) // -1: there is none
		return nil, err
	}
	return os.NewFile(uintptr(came), strconv.FormatUint(number, 10)), nil
}

// Put gives a restored process a descriptor that it awaits, by its number.
func (c *Conn) Put(ctx context.Context, number, bytes uint64, file *os.File) error {
	c.passes = file
	defer func() { c.passes = nil }()
	reply, err := c.Do(ctx, control.SetRequest{Op: control.Put, Held: number, Bytes: bytes})
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	return err
}

// write sends a request, and the descriptor that goes with it.
func (c *Conn) write(line []byte) error {
	if c.passes == nil {
		_, err := c.connection.Write(line)
		return err
	}
	_, _, err := c.connection.WriteMsgUnix(line, unix.UnixRights(int(c.passes.Fd())), nil)
	return err
}

// read reads what comes, and the descriptor that comes with it.
func (c *Conn) read(buffer []byte) (n int, err error) {
	if c.passed == nil {
		return c.connection.Read(buffer)
	}
	raw, err := c.connection.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Read(func(socket uintptr) bool {
		n, err = descriptors.Receive(int(socket), buffer, c.passed)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err = cmp.Or(failed, err); err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// incoming is what a Conn reads.
type incoming struct{ of *Conn }

func (i incoming) Read(buffer []byte) (int, error) { return i.of.read(buffer) }

// Status asks a process for its state, and waits up to within. Errors: ErrUnreachable, wrapped; the process's own. With
// the latter the state has what a restore by the driver needs: Driver and ResumeWait.
func (c *Conn) Status(ctx context.Context, within time.Duration) (state control.ProcessState, err error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	reply, err := c.Do(limited, control.SteerRequest{Op: control.Status})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return state, Unreachable("it does not answer (stopped?)")
	case err != nil:
		return state, err
	case reply.Code == int(cuda.Deinitialized):
		return state, Unreachable("it is ending")
	case !reply.OK:
		var known control.ProcessState
		_ = json.Unmarshal(reply.Process, &known)
		state.Driver, state.ResumeWait = known.Driver, known.ResumeWait
		return state, errors.New(reply.Error)
	}
	err = json.Unmarshal(reply.Process, &state)
	return state, err
}
