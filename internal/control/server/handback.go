package server

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Another thread that has done what it was handed wakes the socket's thread by a word of memory (futex), because the two
// threads have no descriptor in common. To Go, both are system calls like poll, so the thread keeps its goroutine.

const private = 128 // FUTEX_PRIVATE_FLAG

func (s *Server) handsBack() {
	s.handback.Store(1)
	_, _, _ = unix.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.handback)), 1|private /* FUTEX_WAKE */, 1)
}

// awaitHandback waits for that, up to so many milliseconds. What is handed back later ends the next wait.
func (s *Server) awaitHandback(milliseconds int) {
	within := unix.NsecToTimespec(int64(milliseconds) * int64(time.Millisecond))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.handback)), 0|private /* FUTEX_WAIT */, 0,
		uintptr(unsafe.Pointer(&within)), 0, 0)
	s.handback.Store(0)
}
