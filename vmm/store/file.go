package store

import (
	"errors"
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
	direct    atomic.Bool // the page cache is bypassed

	mu       sync.Mutex
	identity descriptors.File // what a descriptor of it stands for: the host may have closed one of the same number
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
		return f.directory.unreached("held", err)
	}
	return nil
}

// close closes a copy of the file's descriptor, and none of another's.
func (f *diskFile) close(fd int) {
	if f.is(fd) {
		f.disk.Descriptors.Close(fd)
	}
}

func (f *diskFile) is(fd int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.identity.Is(fd)
}

// copy returns a copy of the file's descriptor. In a process that was restored from a snapshot, another file with the
// same contents has the number.
func (f *diskFile) copy() (int, error) {
	fd, err := f.disk.Descriptors.Copy(f.number)
	if err != nil {
		return -1, f.directory.unreached("opened", err)
	}
	if f.is(fd) {
		return fd, nil
	}
	// Either that, or the host has closed the copy and has a file of its own at its number. The host does not do so twice
	// with one file.
	first, err := descriptors.FileOf(fd)
	if err != nil {
		return -1, f.directory.unreached("opened", err)
	}
	again, err := f.disk.Descriptors.Copy(f.number)
	if err != nil {
		return -1, f.directory.unreached("opened", err)
	}
	if first.Is(again) {
		f.mu.Lock()
		f.identity = first
		f.mu.Unlock()
		f.close(fd)
	}
	return again, nil
}

// opened opens the file for the time of a call.
func (f *diskFile) opened(use func(fd int) error) error {
	fd, err := f.copy()
	if err != nil {
		return err
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
	cut := func(fd int) error {
		err := ftruncate(fd, 0)
		if f.directory.memory && errors.Is(err, unix.EPERM) { // it is sealed: a snapshot is being made of it
			return nil
		}
		return err
	}
	if err := f.opened(cut); err != nil {
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
	if o.file.is(o.fd) {
		return o.fd, nil
	}
	fd, err := o.file.copy()
	if err != nil {
		return -1, err
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
