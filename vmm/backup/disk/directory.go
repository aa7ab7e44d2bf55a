package disk

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// directory is where files are. While it has any, it holds a lock that shows other processes, even in other PID
// namespaces, that their owner lives.
type directory struct {
	path    string
	setting atomic.Pointer[string] // what last named it; "": it is the default

	mu         sync.Mutex
	references int // files, and a Save in progress
	lock       int // a descriptor, if there are references; -1: none
	identity   identity
}

// identity tells a file from another that has taken its name. A file made right after one was
// deleted often gets its inode; but it was born later.
type identity struct {
	device, inode uint64
	born          unix.StatxTimestamp // zero where the file system or the kernel does not say
}

// has reports whether a descriptor is the file: the host may have closed it, and opened another file with its number.
func (i identity) has(fd int) bool {
	var stat unix.Stat_t
	return fd >= 0 && unix.Fstat(fd, &stat) == nil && uint64(stat.Dev) == i.device && stat.Ino == i.inode
}

// close closes a descriptor of the file, and none of another's.
func (i identity) close(fd int) {
	if i.has(fd) {
		closeFile(fd)
	}
}

// status is what fstat says, or lstat if path is not "".
type status struct {
	identity
	size    int64
	regular bool
	owner   int // user ID
}

func statusOf(fd int, path string) (s status, err error) {
	var stat unix.Stat_t
	if path == "" {
		err = fallible("fstat", func() error { return unix.Fstat(fd, &stat) })
	} else {
		err = unix.Lstat(path, &stat)
	}
	if err != nil {
		return s, err
	}
	s.device, s.inode = uint64(stat.Dev), stat.Ino
	s.size, s.regular, s.owner = stat.Size, stat.Mode&unix.S_IFMT == unix.S_IFREG, int(stat.Uid)
	flags := unix.AT_SYMLINK_NOFOLLOW
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var extended unix.Statx_t
	if unix.Statx(fd, path, flags, unix.STATX_BTIME, &extended) == nil && extended.Mask&unix.STATX_BTIME != 0 {
		s.born = extended.Btime
	}
	return s, nil
}

func newDirectory(path, setting string) *directory {
	d := &directory{path: path, lock: -1}
	d.setting.Store(&setting)
	return d
}

// make makes what is missing of the path, and checks that files can be made there.
func (d *directory) make() error {
	if err := fallible("mkdir", func() error { return os.MkdirAll(d.path, 0o700) }); err != nil {
		if failed, ok := errors.AsType[*os.PathError](err); ok {
			err = failed.Err // its text repeats the path
		}
		return d.failed("making the directory", d.path, err)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, d.path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return d.failed("writing to the directory", d.path, err)
	}
	return nil
}

// inMemory reports whether files at path take memory.
func inMemory(path string) bool {
	var stat unix.Statfs_t
	if unix.Statfs(path, &stat) != nil {
		return false
	}
	return stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC
}

func (d *directory) hold() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	// A host that closes all descriptors, to become a daemon, has released the lock.
	if d.references == 0 || !d.identity.has(d.lock) {
		d.unlock()
		fd, err := openFD(d.path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return d.failed("opening the directory", d.path, err)
		}
		status, err := statusOf(fd, "")
		if err != nil {
			closeFile(fd)
			return d.failed("looking at the directory", d.path, err)
		}
		self, err := self()
		if err != nil {
			closeFile(fd)
			return d.failed("looking up this process for", d.path, err)
		}
		d.lock, d.identity = fd, status.identity
		// Where directories cannot be locked, the PIDs in the names have to suffice.
		_ = self.lock(fd)
	}
	d.references++
	return nil
}

func (d *directory) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.references--; d.references == 0 {
		d.unlock()
	}
}

func (d *directory) unlock() {
	d.identity.close(d.lock)
	d.lock = -1
}

// enough checks that size bytes are free. Reserving them would show that too, but would leave others no space for a
// moment.
func (d *directory) enough(size uint64) error {
	var stat unix.Statfs_t
	if unix.Statfs(d.path, &stat) != nil || stat.Blocks == 0 {
		return nil
	}
	if free := stat.Bavail * uint64(stat.Bsize); free < size {
		return d.failed(fmt.Sprintf("reserving %d MiB, where %d MiB are free, in", size>>20, free>>20),
			d.path, unix.ENOSPC)
	}
	return nil
}
