// Package directio reads and writes files past the page cache (O_DIRECT), and through it where a file system refuses:
// then the pages are written and dropped at once, because nothing reads them twice and the host needs its memory.
package directio

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tms/internal/aid/failpoint"
)

// Block is what O_DIRECT wants addresses, offsets and sizes to be multiples of: no disk has larger blocks.
const Block = 4096

// Buffer returns memory that O_DIRECT takes.
func Buffer(size int) []byte {
	memory := make([]byte, size+Block)
	skip := -uintptr(unsafe.Pointer(&memory[0])) % Block
	return memory[skip : int(skip)+size : int(skip)+size]
}

// Open opens a file past the page cache, or through it where the file system refuses at once. open makes the call with
// more flags.
func Open(open func(flags int) (fd int, err error)) (fd int, direct bool, err error) {
	fd, err = open(unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) {
		fd, err = open(0)
		return fd, false, err
	}
	return fd, err == nil, err
}

// File is an open file. Several threads may use it at once.
type File struct {
	// Descriptor is called before each request: where a program may close descriptors it opens the file again.
	Descriptor func() (int, error)
	// Direct says whether the page cache is bypassed; it is false from the first refusal on.
	Direct *atomic.Bool
}

// Of returns a file that stays open under one descriptor.
func Of(fd int) File {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	direct := new(atomic.Bool)
	direct.Store(err == nil && flags&unix.O_DIRECT != 0)
	return File{func() (int, error) { return fd, nil }, direct}
}

// Write writes all of buffer at offset.
func (f File) Write(buffer []byte, offset int64) error {
	fd, err := f.each(pwrite, buffer, offset, io.ErrShortWrite)
	if err != nil || f.Direct.Load() {
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

// Read fills buffer from offset.
func (f File) Read(buffer []byte, offset int64) error {
	fd, err := f.each(pread, buffer, offset, io.ErrUnexpectedEOF)
	if err == nil && !f.Direct.Load() {
		forget(fd, buffer, offset)
	}
	return err
}

func forget(fd int, buffer []byte, offset int64) {
	_ = unix.Fadvise(fd, offset, int64(len(buffer)), unix.FADV_DONTNEED)
}

// each calls transfer until all of buffer is done, and returns the descriptor that it used last; short is the error for
// a call that transfers nothing.
func (f File) each(transfer func(int, []byte, int64) (int, error), buffer []byte, offset int64,
	short error) (fd int, err error) {
	for done, refused := 0, false; done < len(buffer); {
		if fd, err = f.Descriptor(); err != nil {
			return -1, err
		}
		n, err := transfer(fd, buffer[done:], offset+int64(done))
		switch {
		case err == unix.EINTR:
		case err == unix.EINVAL && !refused:
			// The file system accepted O_DIRECT at open, but does not support it. Each thread that it refuses at once comes
			// here, and needs the flag cleared before it goes on.
			refused = true
			f.Direct.Store(false)
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

func pwrite(fd int, buffer []byte, offset int64) (int, error) {
	if err := failpoint.Err("pwrite"); err != nil {
		return -1, err
	}
	return unix.Pwrite(fd, buffer, offset)
}

func pread(fd int, buffer []byte, offset int64) (int, error) {
	if err := failpoint.Err("pread"); err != nil {
		return -1, err
	}
	return unix.Pread(fd, buffer, offset)
}

func syncFileRange(fd int, offset, size int64) error {
	if err := failpoint.Err("sync_file_range"); err != nil {
		return err
	}
	return unix.SyncFileRange(fd, offset, size,
		unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
}
