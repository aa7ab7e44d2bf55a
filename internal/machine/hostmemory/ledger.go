package hostmemory

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The system counts memory only once it is touched. So processes that look at the same time would each see the same
// memory free, touch it together, and be killed. A ledger is a file that all of a user's processes have in common, in
// which each locks as many bytes as it is about to touch, and unlocks what it has touched. The bytes begin at a place
// that says which process it is. The kernel ends the locks of a process that ends. (fcntl, F_OFD_SETLK)

// Ledger is what processes have promised to take. With a nil Ledger this process looks at itself alone.
type Ledger struct {
	Directory func() (string, error) // where the file is
}

// Promised is memory that a process is about to touch.
type Promised struct {
	PID   int
	Bytes uint64
}

const (
	page     = 4096        // of which the file has a byte for each
	window   = 1 << 40     // bytes of the file for each process, in the order of their numbers
	deskTime = time.Second // for another process, which may be stopped, to look and to promise
)

// Promise is what is locked of a ledger.
type Promise struct {
	mu         sync.Mutex
	file       int   // -1 if the ledger cannot be used
	start, end int64 // of the bytes locked
}

// Promise promises that this process will touch the bytes. It returns nil if fewer are available, and how many are.
func (l *Ledger) Promise(bytes uint64) (promise *Promise, available uint64) {
	file, err := l.open()
	if err != nil {
		if available = Available("self", nil); bytes > available {
			return nil, available
		}
		return &Promise{file: -1}, available
	}
	for start := time.Now(); lock(file, unix.F_WRLCK, 0, 1) != nil && time.Since(start) < deskTime; {
		time.Sleep(time.Millisecond)
	}
	if available = Available("self", promisedIn(file)); bytes > available {
		_ = unix.Close(file)
		return nil, available
	}
	p := &Promise{file: file, start: int64(os.Getpid()) * window}
	for pages := int64((bytes + page - 1) / page); ; p.start = p.end {
		p.end = p.start + pages
		if pages == 0 || lock(file, unix.F_WRLCK, p.start, pages) == nil || p.end > int64(os.Getpid()+1)*window {
			break
		}
		_, p.end, _ = lockedIn(file, p.start, p.end) // by another promise of this process
	}
	_ = lock(file, unix.F_UNLCK, 0, 1)
	return p, available
}

// Promised returns what all processes have promised and not touched yet.
func (l *Ledger) Promised() []Promised {
	file, err := l.open()
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(file) }()
	return promisedIn(file)
}

func (l *Ledger) open() (int, error) {
	if l == nil {
		return -1, os.ErrInvalid
	}
	directory, err := l.Directory()
	if err != nil {
		return -1, err
	}
	return unix.Open(filepath.Join(directory, "hostmemory"), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
}

// Touched takes bytes off a promise, and returns how many of them it had.
func (p *Promise) Touched(bytes uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	pages := min(int64(bytes/page), p.end-p.start)
	if p.file < 0 || pages == 0 {
		return 0
	}
	_ = lock(p.file, unix.F_UNLCK, p.start, pages)
	p.start += pages
	return uint64(pages) * page
}

// End ends a promise. A child may have the file, too, so that closing it does not unlock it.
func (p *Promise) End() {
	p.Touched(1 << 62)
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.Close(p.file)
	p.file = -1
}

func lock(file int, kind int16, start, length int64) error {
	return unix.FcntlFlock(uintptr(file), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: start, Len: length})
}

// lockedIn returns some lock of others within a part of a file, or an end of 0 if there is none. (F_OFD_GETLK)
func lockedIn(file int, from, to int64) (start, end int64, err error) {
	found := unix.Flock_t{Type: unix.F_WRLCK, Start: from, Len: to - from}
	if err = unix.FcntlFlock(uintptr(file), unix.F_OFD_GETLK, &found); err != nil || found.Type == unix.F_UNLCK {
		return 0, 0, err
	}
	return max(from, found.Start), min(to, found.Start+found.Len), nil
}

// promisedIn returns the promises of others in a file. The kernel names locks in no order.
func promisedIn(file int) (found []Promised) {
	var look func(from, to int64)
	look = func(from, to int64) {
		if from >= to {
			return
		}
		start, end, err := lockedIn(file, from, to)
		if err != nil || end == 0 {
			return
		}
		found = append(found, Promised{int(start / window), uint64(end-start) * page})
		look(from, start)
		look(end, to)
	}
	look(window, 1<<62)
	return found
}

// pathsOf returns the control groups of a process, by hierarchy, or none if they are unknown.
func pathsOf(process int, proc string) map[string]string {
	return memberships(filepath.Join(proc, strconv.Itoa(process), "cgroup"))
}
