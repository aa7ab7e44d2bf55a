// Package rawfile reads files and directories by plain system calls. Package os has the runtime make an
// epoll and an eventfd for its first open file, and keep them: descriptors of ours in somebody else's
// process, which may close them, or take their numbers. Here none outlives a call. Errors are unix.Errno.
package rawfile

import (
	"golang.org/x/sys/unix"
)

// Open is open(2), made again while signals interrupt it. The descriptor is closed at an exec.
func Open(path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// ReadFile returns all that the file at path holds.
func ReadFile(path string) ([]byte, error) {
	fd, err := Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var text []byte
	for buffer := make([]byte, 4096); ; {
		n, err := unix.Read(fd, buffer)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return text, nil
		default:
			text = append(text, buffer[:n]...)
		}
	}
}

// Names lists what is in the directory at path, but for "." and "..", in no order.
func Names(path string) ([]string, error) {
	fd, err := Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	return NamesAt(fd)
}

// NamesAt is Names of an open directory, from where it was last read.
func NamesAt(fd int) ([]string, error) {
	var names []string
	for buffer := make([]byte, 8192); ; {
		n, err := unix.ReadDirent(fd, buffer)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return names, nil
		default:
			_, _, names = unix.ParseDirent(buffer[:n], -1, names)
		}
	}
}
