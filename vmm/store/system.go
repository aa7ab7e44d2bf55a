package store

import (
	"errors"

	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
)

// fallible makes a system call whose failure matters, unless a test fails it by this name: see failpoint.
func fallible(name string, call func() error) error {
	if err := failpoint.Err(name); err != nil {
		return err
	}
	return call()
}

func openFD(path string, flags int, mode uint32) (int, error) {
	if err := failpoint.Err("open"); err != nil {
		return -1, err
	}
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func ftruncate(fd int, size int64) error {
	return fallible("ftruncate", func() error { return unix.Ftruncate(fd, size) })
}

// fallocate is the system call, which a test fails by a name.
func fallocate(name string, fd int, mode uint32, part Range) (err error) {
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = fallible(name, func() error { return unix.Fallocate(fd, mode, int64(part.Offset), int64(part.Size)) })
	}
	return err
}

func unlink(path string) error {
	return fallible("unlink", func() error { return unix.Unlink(path) })
}
