package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/fleet"
	numbering "tms/internal/machine/process"
)

// Lock takes the lock under which room is made on a device, by its UUID, or in host memory. It takes the lock in all
// directories in which processes find one another, because each process may have its socket in another. Root takes it
// in the directories of all users, so that commands of root and of users take turns. The lock ends with this process
// (flock). Errors: there is no directory; the holder is stopped.
func Lock(name string) (unlock func(), err error) {
	runtime, temporary, user := os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid()
	owners := map[string]int{}
	if user == 0 {
		owners = control.OthersDirectories(runtime, temporary, user)
	}
	for _, directory := range control.AllDirectories(runtime, temporary, user) {
		owners[directory] = user
	}
	var files []*os.File
	own := 0
	unlock = func() {
		for _, file := range files {
			_ = file.Close()
		}
	}
	for _, directory := range slices.Sorted(maps.Keys(owners)) { // so that two never wait for each other
		owner := owners[directory]
		var file *os.File
		var failed error
		if owner == user {
			failed = control.MakeDirectory(directory, user)
		}
		if failed == nil {
			file, failed = openLock(directory, lockName(name), owner)
		}
		if failed != nil {
			if owner == user {
				err = failed
			}
			continue
		}
		if stopped := lockFile(file, "the lock of "+name); stopped != nil {
			unlock()
			return nil, stopped
		}
		files = append(files, file)
		if owner == user {
			own++
		}
	}
	if own == 0 {
		unlock()
		return nil, fmt.Errorf("the lock of %s cannot be taken: %w", name, err)
	}
	return unlock, nil
}

// openLock opens a file that can be locked, even where root makes it for its owner. That owner may replace the
// directory or the file at any moment.
func openLock(directory, name string, owner int) (*os.File, error) {
	const safely = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	failed := func(err error) (*os.File, error) {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(directory, name), Err: err}
	}
	folder, err := unix.Open(directory, safely|unix.O_DIRECTORY, 0)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = unix.Close(folder) }()
	var found unix.Stat_t
	if err = unix.Fstat(folder, &found); err != nil || found.Uid != uint32(owner) {
		return failed(cmp.Or(err, error(unix.EPERM)))
	}
	descriptor, err := unix.Openat(folder, name, safely, 0)
	if errors.Is(err, unix.ENOENT) {
		descriptor, err = unix.Openat(folder, name, safely|unix.O_CREAT, 0o644)
		if err == nil && owner != os.Geteuid() {
			_ = unix.Fchown(descriptor, owner, -1)
		}
	}
	if err != nil {
		return failed(err)
	}
	return os.NewFile(uintptr(descriptor), name), nil
}

// lockFile locks a file, and closes it if its holder is stopped for too long.
func lockFile(file *os.File, what string) error {
	taken := make(chan struct{})
	go func() {
		for unix.Flock(int(file.Fd()), unix.LOCK_EX) == unix.EINTR {
		}
		close(taken)
	}()
	var holders numbering.Watch
	for {
		select {
		case <-taken:
			return nil
		case <-time.After(numbering.Patience / 10):
		}
		if holder := lockersOf(file, numbering.Patience/10).holder; holders.Exhausted(holder) {
			go func() { // if the holder goes on before this process ends
				<-taken
				_ = file.Close()
			}()
			return numbering.Held(what, holder)
		}
	}
}

// lockers are the processes that have the lock of a file or wait for it, as /proc/locks names them: 0 for none, and for
// a process that cannot be seen here.
type lockers struct {
	holder  int
	waiting []int
}

// looks is when this process has last read /proc/locks, and what it said by file. The kernel stops all locking of files
// while it is read, so the waits of a command for many processes share one look.
var looks struct {
	sync.Mutex
	at time.Time
	of map[string]lockers
}

// lockersOf returns the lockers of a file, as they were no longer ago than age.
func lockersOf(file *os.File, age time.Duration) lockers {
	var found unix.Stat_t
	if unix.Fstat(int(file.Fd()), &found) != nil {
		return lockers{}
	}
	looks.Lock()
	defer looks.Unlock()
	if looks.of == nil || time.Since(looks.at) > age {
		looks.of = readLocks()
		looks.at = time.Now()
	}
	return looks.of[fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(found.Dev)), unix.Minor(uint64(found.Dev)), found.Ino)]
}

// readLocks returns the lockers of all files by device and inode. (proc_locks(5))
func readLocks() map[string]lockers {
	of := map[string]lockers{}
	text, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // "1: FLOCK  ADVISORY  WRITE 7 fe:00:9 0 EOF"; the one that waits has "1: ->"
		waits := len(fields) > 1 && fields[1] == "->"
		if waits {
			fields = fields[1:]
		}
		if len(fields) <= 5 || fields[1] != "FLOCK" {
			continue
		}
		pid, _ := strconv.Atoi(fields[4])
		one := of[fields[5]]
		if waits {
			one.waiting = append(one.waiting, pid)
		} else {
			one.holder = pid
		}
		of[fields[5]] = one
	}
	return of
}

// Lockers returns the processes that have a lock of this user's or wait for it, as far as they are seen here.
func Lockers(name string) (found []int) {
	for _, directory := range control.AllDirectories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), os.Geteuid()) {
		file, err := os.Open(filepath.Join(directory, lockName(name)))
		if err != nil {
			continue
		}
		of := lockersOf(file, 0)
		for _, pid := range append([]int{of.holder}, of.waiting...) {
			found = append(found, max(0, pid))
		}
		_ = file.Close()
	}
	return fleet.Distinct(found)
}

func lockName(of string) string { return strings.ReplaceAll(of, "/", "") + ".lock" }

// LockDevices takes the locks under which memory of these GPUs is taken, and waits for them until ctx ends. A terminal
// can no longer stop this command, because others would wait for it.
func LockDevices(ctx context.Context, uuids []string) (unlock func(), err error) {
	signal.Ignore(unix.SIGTSTP)
	type locks struct {
		unlock func()
		err    error
	}
	taken := make(chan locks, 1)
	go func() {
		unlock, err := lockAll(uuids)
		taken <- locks{unlock, err}
	}()
	select {
	case l := <-taken:
		return l.unlock, l.err
	case <-ctx.Done():
		go func() {
			if l := <-taken; l.err == nil {
				l.unlock()
			}
		}()
		return nil, ctx.Err()
	}
}

func lockAll(uuids []string) (unlock func(), err error) {
	var locked []func()
	unlock = func() {
		for _, unlock := range locked {
			unlock()
		}
	}
	for _, uuid := range slices.Sorted(slices.Values(uuids)) { // so that two never wait for each other
		one, err := Lock(uuid)
		if err != nil {
			unlock()
			return nil, err
		}
		locked = append(locked, one)
	}
	return unlock, nil
}

// takeOn lists the devices where members have memory, or will have some.
func (g *Group) takeOn() []string {
	of := needed{}
	for _, m := range g.Members {
		for d := range m.state.Tags() {
			of[d.UUID] = 0
		}
		for _, leg := range m.way.legs {
			of[leg.From], of[leg.To] = 0, 0
		}
	}
	return of.devices()
}

// Locked has the members do what takes memory, under the locks of the devices where they have some. Once one of them is
// stopped the locks end, because others would wait for it. An undo or the end of a move is never left out: where the
// locks cannot be had, it is made without.
func (g *Group) Locked(do func()) {
	unlock := g.unlock
	if unlock == nil {
		var err error
		if unlock, err = LockDevices(context.Background(), g.takeOn()); err != nil {
			do()
			return
		}
	}
	unlock = sync.OnceFunc(unlock)
	defer unlock()
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(lookEvery):
				if slices.ContainsFunc(g.Members, func(m *Member) bool { return m.Stopped() }) {
					unlock()
					return
				}
			}
		}
	}()
	do()
}
