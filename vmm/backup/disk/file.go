package disk

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tms/vmm/reclaim"
)

// O_DIRECT wants addresses, offsets and sizes that are multiples of blockSize; no disk has larger blocks.
const blockSize = 4096

// diskFile is a file that has space reserved for a span. No descriptor stays open while it waits.
type diskFile struct {
	directory *directory
	path      string
	size      uint64
	identity  identity
	owner     int // user ID of its maker
}

// create makes a file of size bytes that only its owner can read. A file that cannot be completed is removed as
// garbage.
func (d *directory) create(size uint64, garbage *reclaim.Kind) (*diskFile, error) {
	self, err := self()
	if err != nil {
		return nil, d.failed("looking up this process for", d.path, err)
	}
	var path string
	var fd int
	for {
		path = filepath.Join(d.path, self.nextName())
		fd, err = openFD(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		// This process left it before an exec, or it is somebody else's file.
		if err != unix.EEXIST {
			break
		}
	}
	if err != nil {
		return nil, d.failed("creating", path, err)
	}
	err = unix.Fchmod(fd, 0o600) // the umask may have cleared more bits
	var status status
	if err == nil {
		status, err = statusOf(fd, "")
	}
	if err != nil {
		closeFile(fd)
		garbage.Add(0, func() error { return unlink(path) })
		return nil, d.failed("creating", path, err)
	}
	f := &diskFile{directory: d, path: path, size: size, identity: status.identity, owner: status.owner}
	defer f.identity.close(fd)
	if err = d.hold(); err != nil {
		garbage.Add(0, func() error { return unlink(path) })
		return nil, err
	}
	if err = f.reserve(fd); err != nil {
		garbage.Add(size, f.unlink)
		return nil, err
	}
	return f, nil
}

// reserve takes the space of the whole file, so that a full disk is known before copying starts.
func (f *diskFile) reserve(fd int) error {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = fallible("fallocate", func() error { return unix.Fallocate(fd, 0, 0, int64(f.size)) })
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = fallible("ftruncate", func() error { return unix.Ftruncate(fd, int64(f.size)) })
	}
	if err != nil {
		return f.directory.failed(fmt.Sprintf("reserving %d MiB for", f.size>>20), f.path, err)
	}
	return nil
}

// open opens the file if it is still the one that was made and has at least size bytes. It bypasses the page cache
// where the file system allows that. A FIFO in its place must not make it wait.
func (f *diskFile) open(mode int, size uint64) (fd int, direct bool, err error) {
	flags := mode | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err = openFD(f.path, flags|unix.O_DIRECT, 0)
	direct = err == nil
	if err == unix.EINVAL {
		fd, err = openFD(f.path, flags, 0)
	}
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR:
		return -1, false, fmt.Errorf("%w: it was deleted or moved (%w)", errChanged, err)
	case unix.ELOOP, unix.ENXIO, unix.EISDIR:
		return -1, false, fmt.Errorf("%w: another has its name (%w)", errChanged, err)
	default:
		return -1, false, err
	}
	status, err := statusOf(fd, "")
	switch {
	case err != nil:
	case status.identity != f.identity || !status.regular:
		err = fmt.Errorf("%w: another has its name", errChanged)
	case uint64(status.size) < size:
		err = fmt.Errorf("%w: it was cut to %d of %d bytes", errChanged, status.size, size)
	}
	if err != nil {
		closeFile(fd)
		return -1, false, err
	}
	return fd, direct, nil
}

// unlink takes the file's name away, unless another file has it, and releases the directory. After an error it can be
// called again.
func (f *diskFile) unlink() error {
	if status, err := statusOf(unix.AT_FDCWD, f.path); err == nil && status.identity == f.identity {
		if err := unlink(f.path); err != nil && err != unix.ENOENT {
			return err
		}
	}
	f.directory.drop()
	return nil
}

func closeFile(fd int) { _ = unix.Close(fd) }

// openFile is a file that a transfer's workers share, open from its first chunk to its last.
type openFile struct {
	file *diskFile
	mode int

	mu     sync.Mutex
	fd     int // -1: not open
	chunks int // still to do
	direct atomic.Bool
}

// descriptor opens the file at first need, and again when the host has closed the descriptor meanwhile: the number may
// by now stand for a file of the host's.
func (o *openFile) descriptor() (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file.identity.has(o.fd) {
		return o.fd, nil
	}
	fd, direct, err := o.file.open(o.mode, o.file.size)
	if err != nil {
		return -1, err
	}
	o.fd = fd
	o.direct.Store(direct)
	return fd, nil
}

func (o *openFile) done() {
	o.mu.Lock()
	o.chunks--
	last := o.chunks == 0
	o.mu.Unlock()
	if last {
		o.close()
	}
}

func (o *openFile) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.file.identity.close(o.fd)
	o.fd = -1
}

// write writes all of buffer at offset.
func (o *openFile) write(buffer []byte, offset int64) error {
	fd, err := o.each(pwrite, buffer, offset, io.ErrShortWrite)
	if err != nil || o.direct.Load() {
		return err
	}
	// Dirty pages cannot be dropped, so they are written now, and their errors show here.
	err = syncFileRange(fd, offset, int64(len(buffer)))
	if err == unix.ENOSYS || err == unix.EINVAL {
		err = unix.Fdatasync(fd)
	}
	if err == nil {
		forget(fd, buffer, offset)
	}
	return err
}

// read fills buffer from offset.
func (o *openFile) read(buffer []byte, offset int64) error {
	fd, err := o.each(pread, buffer, offset, fmt.Errorf("%w: it was cut", errChanged))
	if err == nil && !o.direct.Load() {
		forget(fd, buffer, offset)
	}
	return err
}

// forget drops pages from the page cache: nobody reads them twice, and the host needs its memory.
func forget(fd int, buffer []byte, offset int64) {
	_ = unix.Fadvise(fd, offset, int64(len(buffer)), unix.FADV_DONTNEED)
}

// each calls f until all of buffer is done, and returns the descriptor that it used last; short is the error for a call
// that transfers nothing.
func (o *openFile) each(f func(int, []byte, int64) (int, error), buffer []byte, offset int64,
	short error) (fd int, err error) {
	for done := 0; done < len(buffer); {
		if fd, err = o.descriptor(); err != nil {
			return -1, err
		}
		n, err := f(fd, buffer[done:], offset+int64(done))
		switch {
		case err == unix.EINTR:
		case err == unix.EINVAL && o.direct.Swap(false):
			// The file system accepted O_DIRECT at open, but does not support it.
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_DIRECT)
			}
			if err != nil {
				return -1, fmt.Errorf("fcntl: %w", err)
			}
		case err != nil:
			return -1, err
		case n == 0:
			return -1, short
		default:
			done += n
		}
	}
	return fd, nil
}
