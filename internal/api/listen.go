package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/server"
)

const (
	maxConnections = 128
	lockTime       = 5 * time.Second // for another process that makes or removes a socket in the directory
)

// DefaultSocket returns where a user's server listens: beside the sockets of the user's processes.
func DefaultSocket() (string, error) {
	var refused []error
	for _, directory := range control.Directories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid()) {
		err := control.MakeDirectory(directory, os.Geteuid())
		if err == nil {
			return filepath.Join(directory, "serve.sock"), nil
		}
		refused = append(refused, err)
	}
	return "", errors.Join(refused...)
}

// ListenUnix makes a socket that lets this user and root in, and no one else. It removes one that a server has left
// behind, under the directory's lock. Errors: another server answers there; something else is there.
func ListenUnix(path string) (net.Listener, error) {
	directory, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("%w: make the directory, or choose another path", err)
	}
	lock, err := control.LockDirectory(directory, lockTime)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(lock) }()
	if err = removeStale(path); err != nil {
		return nil, err
	}
	private := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) (err error) {
		failed := socket.Control(func(descriptor uintptr) { err = unix.Fchmod(int(descriptor), 0o600) })
		return errors.Join(err, failed) // before the bind, which gives the file the socket's mode
	}}
	listener, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	made, err := os.Lstat(path)
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	return Limited(&peers{listener.(*net.UnixListener), path, made}), nil
}

// removeStale makes room for a socket.
func removeStale(path string) error {
	var found unix.Stat_t
	if err := unix.Lstat(path, &found); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return err
	}
	switch {
	case found.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return errors.New("there is a file that is no socket: choose another path")
	case control.Answered(path):
		return errors.New("a server answers there: end it, or choose another path")
	}
	return unix.Unlink(path)
}

// Limited bounds the connections of a listener; others wait.
func Limited(listener net.Listener) net.Listener {
	return netutil.LimitListener(listener, maxConnections)
}

// peers accepts this user's connections and root's. It closes those of others without a word.
type peers struct {
	*net.UnixListener
	path string
	made os.FileInfo
}

// Accept also looks now and then whether the socket still has its place. Errors: ErrGone.
func (p *peers) Accept() (net.Conn, error) {
	for {
		_ = p.SetDeadline(time.Now().Add(control.Look))
		connection, err := p.AcceptUnix()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if found, err := os.Lstat(p.path); err != nil || !os.SameFile(found, p.made) {
				p.SetUnlinkOnClose(false) // another server may have the place
				return nil, ErrGone
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if from, err := callerOf(connection); err == nil {
			return &peer{connection, from}, nil
		}
		_ = connection.Close()
	}
}

// ErrGone: no path leads to the socket any longer.
var ErrGone = errors.New("the socket's file is gone (a user's last logout removes $XDG_RUNTIME_DIR); start tms serve " +
	"again, or with --listen unix:PATH in another directory")

// peerFormat is how an address says who has connected.
const peerFormat = "uid %d, pid %d"

// elsewhere is a caller that sees no process of this machine: it may share no more than the socket's directory, as a
// container does, and processes themselves refuse it, too.
const elsewhere = address("a process of another PID namespace")

// callerOf asks the kernel who has connected. (SO_PEERCRED) Errors: another user has.
func callerOf(connection *net.UnixConn) (from address, err error) {
	socket, err := connection.SyscallConn()
	if err != nil {
		return "", err
	}
	failed := socket.Control(func(descriptor uintptr) {
		var peer *unix.Ucred
		peer, err = unix.GetsockoptUcred(int(descriptor), unix.SOL_SOCKET, unix.SO_PEERCRED)
		switch {
		case err != nil:
		case int(peer.Uid) != os.Geteuid() && peer.Uid != 0:
			err = unix.EPERM
		case !server.IsAround(int(descriptor), int(peer.Pid)):
			from = elsewhere
		default:
			from = address(fmt.Sprintf(peerFormat, peer.Uid, peer.Pid))
		}
	})
	return from, errors.Join(err, failed)
}

// peer is a connection whose remote address says who has connected.
type peer struct {
	*net.UnixConn
	from address
}

func (p *peer) RemoteAddr() net.Addr { return p.from }

type address string

func (address) Network() string  { return "unix" }
func (a address) String() string { return string(a) }
