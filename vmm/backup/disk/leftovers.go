package disk

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tms/internal/process"
)

// owner is a process that has files, as their names identify it: tms-<pid>-<start>.<boot>-<n>.bak. A PID is used again,
// but not with the same start time, nor with the boot's ID on another machine that has the directory mounted.
type owner struct {
	pid   int
	start uint64 // clock ticks from boot: field 22 of /proc/PID/stat
	boot  string // 8 hex digits of /proc/sys/kernel/random/boot_id
}

func (o owner) String() string { return fmt.Sprintf("tms-%d-%d.%s", o.pid, o.start, o.boot) }

var myself struct {
	sync.Mutex
	owner owner
	known bool
}

// self is this process. What /proc does not show is left out for good. A passing error, such as a lack of descriptors,
// is returned: under half a name others would take this process for dead, or it them.
func self() (owner, error) {
	myself.Lock()
	defer myself.Unlock()
	if myself.known {
		return myself.owner, nil
	}
	o := owner{pid: os.Getpid(), boot: "00000000"}
	start, _, err := process.Started(o.pid)
	if passes(err) {
		return owner{}, err
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if passes(err) {
		return owner{}, err
	}
	o.start = start
	if err == nil && len(id) >= 8 {
		o.boot = string(id[:8])
	}
	myself.owner, myself.known = o, true
	return o, nil
}

// passes reports whether an error is a lack of something that may be there at the next try.
func passes(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// serial is the n of the last name that was given out.
var serial atomic.Uint64

func (o owner) nextName() string { return o.name(serial.Add(1)) }

func (o owner) name(n uint64) string { return fmt.Sprintf("%s-%d.bak", o, n) }

// parseName is the reverse of name; ok is false for what name does not return.
func parseName(name string) (o owner, n uint64, ok bool) {
	read, _ := fmt.Sscanf(name, "tms-%d-%d.%8s-%d.bak", &o.pid, &o.start, &o.boot, &n)
	return o, n, read == 4 && o.pid >= 0 && len(o.boot) == 8 && !strings.Contains(o.boot, "-") && o.name(n) == name
}

// lockRange returns the byte of a directory that stands for the process. Only its owner locks it, shared.
func (o owner) lockRange(kind int16) *unix.Flock_t {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(o.String()))
	return &unix.Flock_t{Type: kind, Start: int64(hash.Sum64() >> 2), Len: 1}
}

// lock lasts as long as the open directory: until it is closed, or the process and the children that it forked have
// died.
func (o owner) lock(directory int) error {
	return unix.FcntlFlock(uintptr(directory), unix.F_OFD_SETLK, o.lockRange(unix.F_RDLCK))
}

func (o owner) locked(directory int) bool {
	lock := o.lockRange(unix.F_WRLCK)
	err := unix.FcntlFlock(uintptr(directory), unix.F_OFD_GETLK, lock)
	return err == nil && lock.Type != unix.F_UNLCK
}

// dead reports whether a process has certainly ended. local: no other machine has the directory.
func (o owner) dead(self owner, directory int, local bool) bool {
	if o.locked(directory) {
		return false // whatever else shows: it may be in another sandbox, which sees other PIDs and boot IDs
	}
	if o.boot != self.boot {
		return local
	}
	start, zombie, err := process.Started(o.pid)
	if err != nil {
		_, _, unseen := process.Started(os.Getpid()) // no /proc, no verdict
		return errors.Is(err, fs.ErrNotExist) && unseen == nil
	}
	return zombie || start != o.start
}

// Magic numbers of statfs(2) that x/sys/unix does not have.
const zfsMagic = 0x2fc12fc1

func local(directory int) bool {
	var stat unix.Statfs_t
	if unix.Fstatfs(directory, &stat) != nil {
		return false
	}
	switch stat.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, zfsMagic:
		return true
	}
	return false
}

// removeLeftovers removes files of this user's dead processes. What cannot be removed, or judged, stays: it only takes
// space on the disk.
func removeLeftovers(path string) {
	directory, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	defer func() { _ = directory.Close() }()
	self, err := self()
	if err != nil {
		return
	}
	fd := int(directory.Fd())
	isLocal := local(fd)
	names, _ := directory.Readdirnames(-1)
	given := serial.Load() // after the names: none of ours in the list is above it
	for _, name := range names {
		o, n, ok := parseName(name)
		if !ok {
			continue
		}
		if o == self {
			// Above what was given out: the program that called exec to become this one left it.
			if n <= given {
				continue
			}
		} else if !o.dead(self, fd, isLocal) {
			continue
		}
		file := filepath.Join(path, name)
		if status, err := statusOf(unix.AT_FDCWD, file); err == nil && status.regular && status.owner == os.Geteuid() {
			_ = unix.Unlink(file)
		}
	}
}
