package store

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// O_DIRECT wants addresses, offsets and sizes that are multiples of blockSize; no disk has larger blocks.
const blockSize = 4096

// diskFile is a file without a name. Descriptors keep it: the process has none of it open while it waits.
type diskFile struct {
	directory *directory
	kept      uint64 // the number by which it is kept
	device    uint64
	inode     uint64      // it is no other file's as long as this one is kept
	direct    atomic.Bool // the page cache is bypassed

	mu       sync.Mutex
	size     uint64
	sections int // that have contents
	gone     bool
}

// section is the part of a file that is reserved for a span.
type section struct {
	file         *diskFile
	offset, size uint64
}

// add adds a section to a file that is not made yet.
func (f *diskFile) add(size uint64) *section {
	s := &section{file: f, offset: f.size, size: size}
	f.size += (size + blockSize - 1) / blockSize * blockSize
	f.sections++
	return s
}

// create makes the file with space for its sections, so that a full disk is known before copying starts.
func (f *diskFile) create(descriptors Descriptors) error {
	fd, direct, err := f.directory.open()
	if err != nil {
		return f.directory.failed("making a file in", err)
	}
	f.direct.Store(direct)
	var stat unix.Stat_t
	if err = fallible("fstat", func() error { return unix.Fstat(fd, &stat) }); err != nil {
		_ = unix.Close(fd)
		return f.directory.failed("making a file in", err)
	}
	f.device, f.inode = uint64(stat.Dev), stat.Ino
	defer f.close(fd, descriptors)
	whole := section{file: f, size: f.size}
	if err = whole.reserve(fd); err != nil {
		return err
	}
	if f.kept, err = descriptors.Keep(fd); err != nil {
		_ = descriptors.Drop(f.kept)
		return f.directory.unkept("kept", err)
	}
	return nil
}

// has reports whether a descriptor is the file: the host may have closed it, and opened another file with its number.
func (f *diskFile) has(fd int) bool {
	var stat unix.Stat_t
	return fd >= 0 && unix.Fstat(fd, &stat) == nil && uint64(stat.Dev) == f.device && stat.Ino == f.inode
}

// close closes a copy of the file's descriptor, and none of another's.
func (f *diskFile) close(fd int, descriptors Descriptors) {
	if f.has(fd) {
		descriptors.Close(fd)
	}
}

// opened opens the file for the time of a call.
func (f *diskFile) opened(descriptors Descriptors, use func(fd int) error) error {
	fd, err := descriptors.Copy(f.kept)
	if err != nil {
		return f.directory.unkept("opened", err)
	}
	defer f.close(fd, descriptors)
	return use(fd)
}

// reserve takes the space of the section.
func (s *section) reserve(fd int) error {
	err := s.fallocate("fallocate", fd, 0)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = ftruncate(fd, int64(s.file.size))
	}
	if err != nil {
		return s.file.directory.failed(fmt.Sprintf("reserving %d MiB in", s.size>>20), err)
	}
	return nil
}

// fallocate is the system call for the section, which a test fails by a name.
func (s *section) fallocate(name string, fd int, mode uint32) (err error) {
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = fallible(name, func() error { return unix.Fallocate(fd, mode, int64(s.offset), int64(s.size)) })
	}
	return err
}

// leave takes the contents out of the section, whose space is given back by free.
func (s *section) leave() {
	s.file.mu.Lock()
	defer s.file.mu.Unlock()
	s.file.sections--
}

// free gives the space of a section that was left back: that of the whole file with the last. The file is cut first,
// because a child that was forked during a transfer may have it open, and so that the thread that keeps it never waits
// for the disk. After an error it can be called again.
func (s *section) free(descriptors Descriptors) error {
	f := s.file
	f.mu.Lock()
	last, gone := f.sections == 0, f.gone
	f.mu.Unlock()
	if gone {
		return nil
	}
	if err := f.opened(descriptors, func(fd int) error {
		if last {
			return ftruncate(fd, 0)
		}
		// Where a file system has no holes, the space comes back with the last section.
		_ = s.fallocate("punch", fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE)
		return nil
	}); err != nil || !last {
		return err
	}
	if err := descriptors.Drop(f.kept); err != nil {
		return err
	}
	f.mu.Lock()
	f.gone = true
	f.mu.Unlock()
	return nil
}

// openFile is a file that a transfer's workers share. It is open as long as there are chunks of it.
type openFile struct {
	file        *diskFile
	descriptors Descriptors

	mu     sync.Mutex
	fd     int // -1: not open
	chunks int // still to do
}

// descriptor opens the file at first need, and again if the host has closed the descriptor: the number may by now stand
// for a file of the host's.
func (o *openFile) descriptor() (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file.has(o.fd) {
		return o.fd, nil
	}
	fd, err := o.descriptors.Copy(o.file.kept)
	if err != nil {
		return -1, o.file.directory.unkept("opened", err)
	}
	o.fd = fd
	return fd, nil
}

func (o *openFile) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.chunks++
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
	o.file.close(o.fd, o.descriptors)
	o.fd = -1
}

// write writes all of buffer at offset.
func (o *openFile) write(buffer []byte, offset int64) error {
	fd, err := o.each(pwrite, buffer, offset, io.ErrShortWrite)
	if err != nil || o.file.direct.Load() {
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
	fd, err := o.each(pread, buffer, offset, io.ErrUnexpectedEOF)
	if err == nil && !o.file.direct.Load() {
		forget(fd, buffer, offset)
	}
	return err
}

// forget drops pages from the page cache: they are not read twice, and the host needs its memory.
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
		case err == unix.EINVAL && o.file.direct.Swap(false):
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
