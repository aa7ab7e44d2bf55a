package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	numbering "tms/internal/process"
)

// lock takes the lock under which room is made on a device, by its UUID, or in host memory: in all directories in which
// processes find one another, because each may have its socket in another. It ends with this process. (flock) Errors:
// that there is no directory; the holder, which is stopped.
func lock(name string) (unlock func(), err error) {
	user := os.Geteuid()
	directories := control.AllDirectories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), user)
	slices.Sort(directories) // so that two never wait for each other
	var files []*os.File
	unlock = func() {
		for _, file := range files {
			_ = file.Close()
		}
	}
	for _, directory := range directories {
		var file *os.File
		if err = control.MakeDirectory(directory, user); err == nil {
			file, err = os.OpenFile(directory+"/"+strings.ReplaceAll(name, "/", "")+".lock", os.O_RDWR|os.O_CREATE, 0o600)
		}
		if err != nil {
			continue
		}
		if stopped := lockFile(file, "the lock of "+name); stopped != nil {
			unlock()
			return nil, stopped
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the lock of %s cannot be taken: %w", name, err)
	}
	return unlock, nil
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
		if holder := holderOf(file); holders.Exhausted(holder) {
			go func() { // if the holder goes on before this process ends
				<-taken
				_ = file.Close()
			}()
			return numbering.Held(what, holder)
		}
	}
}

// holderOf returns the process that has locked a file; 0: it cannot be seen. (proc_locks(5))
func holderOf(file *os.File) int {
	var found unix.Stat_t
	if unix.Fstat(int(file.Fd()), &found) != nil {
		return 0
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(found.Dev)), unix.Minor(uint64(found.Dev)), found.Ino)
	locks, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(locks)) {
		fields := strings.Fields(line) // "1: FLOCK  ADVISORY  WRITE 7 fe:00:9 0 EOF"; the one that waits has "1: ->"
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == inode {
			holder, _ := strconv.Atoi(fields[4])
			return holder
		}
	}
	return 0
}
