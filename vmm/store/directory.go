package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"tms/internal/aid/directio"
	"tms/internal/aid/failpoint"
)

// Directory is where files without a name are made.
type Directory struct {
	path    string
	setting string // the setting that named it, or "" for the default
	memory  bool   // it is no directory: the files are host memory
}

// memoryFiles makes files that are host memory. A process may seal the memory, so that it stays as it is.
var memoryFiles = &Directory{path: "host memory", memory: true}

// NewDirectory makes what is missing of a path, for its owner only, and checks that files can be made there. setting
// says where the path came from, for error texts: the name of a function or variable, "" for a default. Errors:
// ErrDisk.
func NewDirectory(path, setting string) (*Directory, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, (&Directory{path: path, setting: setting}).failed("finding", err)
	}
	d := &Directory{path: absolute, setting: setting}
	return d, d.make()
}

func (d *Directory) make() error {
	if err := fallible("mkdir", func() error { return os.MkdirAll(d.path, 0o700) }); err != nil {
		if failed, ok := errors.AsType[*os.PathError](err); ok {
			err = failed.Err // its text repeats the path
		}
		return d.failed("making the directory", err)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, d.path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return d.failed("writing to the directory", err)
	}
	return nil
}

// InMemory reports whether the directory's files take host memory.
func (d *Directory) InMemory() bool {
	if d.memory {
		return true
	}
	var stat unix.Statfs_t
	if unix.Statfs(d.path, &stat) != nil {
		return false
	}
	return stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC
}

// NewFile returns a file that has no name, with its space. It uses the page cache. Errors: ErrDisk.
func (d *Directory) NewFile(size uint64) (*os.File, error) {
	fd, err := d.openUnnamed(0)
	if err != nil {
		return nil, d.failed("making a file in", err)
	}
	if err := d.reserve(fd, size); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), d.path), nil
}

// reserve gives a file its space, so that a full disk is known before copying starts.
func (d *Directory) reserve(fd int, size uint64) error {
	var err error = unix.EOPNOTSUPP // memory is taken as it is written, because a part may stay a hole
	if !d.memory {
		err = fallocate("fallocate", fd, 0, Range{Size: size})
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = ftruncate(fd, int64(size)) // a full disk is then found by the copy
	}
	if err != nil {
		return d.failed(fmt.Sprintf("reserving %d MiB in", size>>20), err)
	}
	return nil
}

// open opens a new file that has no name, past the page cache where the file system allows that.
func (d *Directory) open() (fd int, direct bool, err error) {
	if d.memory {
		err = fallible("memfd_create", func() error {
			fd, err = unix.MemfdCreate("tms contents", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			return err
		})
		return fd, false, err
	}
	return directio.Open(d.openUnnamed)
}

// openUnnamed takes the name away from an empty file where the file system makes none without a name.
func (d *Directory) openUnnamed(flags int) (fd int, err error) {
	flags |= unix.O_RDWR | unix.O_EXCL
	if err = failpoint.Err("O_TMPFILE"); err == nil {
		fd, err = openFD(d.path, flags|unix.O_TMPFILE, 0o600)
	}
	if err != unix.EOPNOTSUPP && err != unix.EISDIR { // EISDIR: the file system's driver is older than the flag
		return fd, err
	}
	path := filepath.Join(d.path, fmt.Sprintf("tms-%d-%x", os.Getpid(), rand.Uint64()))
	if fd, err = openFD(path, flags|unix.O_CREAT|unix.O_NOFOLLOW, 0o600); err != nil {
		return -1, err
	}
	if err = unlink(path); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// enough checks that size bytes are free. Reserving them would show that too, but would leave others no space for a
// moment.
func (d *Directory) enough(size uint64) error {
	if d.memory {
		return nil // a Budget knows
	}
	var stat unix.Statfs_t
	if unix.Statfs(d.path, &stat) != nil || stat.Blocks == 0 {
		return nil
	}
	if free := stat.Bavail * uint64(stat.Bsize); free < size {
		return d.failed(fmt.Sprintf("reserving %d MiB, where %d MiB are free, in", size>>20, free>>20), unix.ENOSPC)
	}
	return nil
}
