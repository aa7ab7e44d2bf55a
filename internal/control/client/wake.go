package client

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wakeTime is how long a process may take to listen once it is asked to.
const wakeTime = 10 * time.Second

// listenerMapping ends the line in a process's maps of the word on which a thread of libtms.so sleeps until it is asked
// to listen (preload/listener.c).
const listenerMapping = "/memfd:tms-listener (deleted)\n"

// DialOrWake is Dial, but has a process listen that uses CUDA or NVML and has no pausable memory yet. From then on a child
// that the process forks can have none.
func DialOrWake(pid int) (*Conn, error) {
	connection, err := Dial(pid)
	if err == nil {
		return connection, nil
	}
	woken, failed := wake(pid)
	if failed != nil {
		return nil, Unreachable("it cannot be asked to listen: %w", failed)
	}
	for until := time.Now().Add(wakeTime); woken && err != nil && time.Now().Before(until); {
		time.Sleep(2 * time.Millisecond)
		connection, err = Dial(pid)
	}
	return connection, err
}

// CanWake reports whether a process listens once it is asked to, or has listened since.
func CanWake(pid int) bool { return listenerOf(pid) != "" }

// listenerOf returns the file that is mapped where the thread sleeps, or "".
func listenerOf(pid int) (file string) {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(line, listenerMapping) {
			place, _, _ := strings.Cut(line, " ")
			return fmt.Sprintf("/proc/%d/map_files/%s", pid, place)
		}
	}
	return ""
}

// wake reports whether the process has a thread that it could ask to listen. The thread sleeps on a word in shared memory.
// (futex)
func wake(pid int) (woken bool, err error) {
	path := listenerOf(pid)
	if path == "" {
		return false, nil
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	_ = file.Close()
	if err != nil {
		return false, err
	}
	word := (*uint32)(unsafe.Pointer(&memory[0]))
	atomic.StoreUint32(word, 1)
	const futexWake = 1
	_, _, _ = unix.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1)
	return true, unix.Munmap(memory)
}
