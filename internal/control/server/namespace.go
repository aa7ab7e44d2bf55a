package server

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/machine/process"
)

// A process in a container may share no more than a directory with this one, to read what it reports. So a client whose
// PID namespace is neither this process's own nor around it may ask for the status alone.

var errForeign = errors.New("only a status may be asked for from another PID namespace (another container): run tms " +
	"where the process runs, or start the process with TMS_CONTROL_ANY_NAMESPACE=1")

// pidfdGetNamespace is PIDFD_GET_PID_NAMESPACE of Linux 6.11.
const pidfdGetNamespace = 0xff05

// allowed refuses what a client may not ask for from its PID namespace.
func (s *Server) allowed(c *connection, r control.Request) error {
	if r.Operation() == control.Status || c.trusted {
		return nil
	}
	if c.trusted = c.pid == os.Getpid() || s.process.AnyNamespace() || c.isAround(); !c.trusted {
		return errForeign
	}
	return nil
}

// isAround is IsAround of a client.
func (c *connection) isAround() bool { return IsAround(c.descriptor, c.pid) }

// IsAround reports whether this process has a number in the PID namespace of a socket's peer, which has the number pid
// here, or 0. An older kernel, or a user namespace between the two, shows only whether the peer is in this process's
// own. (ioctl_nsfs(2))
func IsAround(socket, pid int) bool {
	if namespace, err := namespaceOf(socket); err == nil {
		defer func() { _ = unix.Close(namespace) }()
		number, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(namespace), unix.NS_GET_PID_IN_PIDNS,
			uintptr(os.Getpid()))
		if failed == 0 || failed == unix.ESRCH {
			return failed == 0 && number > 0
		}
	}
	return pid > 0 && isBeside(pid)
}

// namespaceOf opens the PID namespace of a socket's peer.
func namespaceOf(socket int) (int, error) {
	handle, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(handle) }()
	return unix.IoctlRetInt(handle, pidfdGetNamespace)
}

// isBeside reports whether a process that has a number here has it in this process's own PID namespace, as /proc shows
// even where the process is root's.
func isBeside(pid int) bool {
	self, _ := os.Readlink("/proc/self") // which may be another namespace's /proc
	own := process.Numbers(os.Getpid())
	return len(own) == 1 && own[0] == self && len(process.Numbers(pid)) == 1
}
