package store

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tms/internal/aid/descriptors"
	"tms/internal/aid/directio"
)

// diskFile is a file without a name. Descriptors keeps it: the process has none of it open while it waits.
type diskFile struct {
	extent
	disk      *Disk
	directory *Directory
	identity  descriptors.File // what a descriptor of it stands for: the host may have closed one of the same number
	direct    atomic.Bool      // the page cache is bypassed
}

// create makes the file, with its space.
func (f *diskFile) create() error {
	fd, direct, err := f.directory.open()
	if err != nil {
		return f.directory.failed("making a file in", err)
	}
	f.direct.Store(direct)
	err = fallible("fstat", func() (err error) { f.identity, err = descriptors.FileOf(fd); return err })
	if err != nil {
		_ = unix.Close(fd)
		return f.directory.failed("making a file in", err)
	}
	defer f.close(fd)
	if err := f.directory.reserve(fd, f.size); err != nil {
		return err
	}
	if err := f.disk.keep(&f.extent, fd); err != nil {
		return f.directory.unkept("kept", err)
	}
	return nil
}

// close closes a copy of the file's descriptor, and none of another's.
func (f *diskFile) close(fd int) {
	if f.identity.Is(fd) {
		f.disk.Descriptors.Close(fd)
	}
}

// opened opens the file for the time of a call.
func (f *diskFile) opened(use func(fd int) error) error {
	fd, err := f.disk.Descriptors.Copy(f.number)
	if err != nil {
		return f.directory.unkept("opened", err)
	}
	defer f.close(fd)
	return use(fd)
}

// release cuts the file before it ends, because a child that was forked during a transfer may have it open, and so that
// the thread that keeps it never waits for the disk.
func (f *diskFile) release() error {
	if f.number == 0 {
		return nil
	}
	if err := f.opened(func(fd int) error { return ftruncate(fd, 0) }); err != nil {
		return err
	}
	if err := f.disk.Descriptors.Drop(f.number); err != nil {
		return err
	}
	f.number = 0
	return nil
}

// trim makes a hole. Where a file system has none, the space comes back with the file.
func (f *diskFile) trim(part Range) func() error {
	return func() error {
		if f.number == 0 {
			return nil
		}
		return f.opened(func(fd int) error {
			_ = fallocate("punch", fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, part)
			return nil
		})
	}
}

// openFile is a file that a transfer's workers share. It is open as long as there are requests for it.
type openFile struct {
	file *diskFile

	mu       sync.Mutex
	fd       int // -1: not open
	requests int // still to do
}

// descriptor opens the file at first need, and again if the host has closed the descriptor: the number may by now stand
// for a file of the host's.
func (o *openFile) descriptor() (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file.identity.Is(o.fd) {
		return o.fd, nil
	}
	fd, err := o.file.disk.Descriptors.Copy(o.file.number)
	if err != nil {
		return -1, o.file.directory.unkept("opened", err)
	}
	o.fd = fd
	return fd, nil
}

func (o *openFile) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests++
}

func (o *openFile) done() {
	o.mu.Lock()
	o.requests--
	last := o.requests == 0
	o.mu.Unlock()
	if last {
		o.close()
	}
}

func (o *openFile) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.file.close(o.fd)
	o.fd = -1
}

// direct returns the file as requests use it.
func (o *openFile) direct() directio.File {
	return directio.File{Descriptor: o.descriptor, Direct: &o.file.direct}
}
