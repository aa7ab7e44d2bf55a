package server

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Other threads wake the socket's thread by a word of memory (futex), because they have no descriptor in common with
// it. To Go, both are system calls like poll, so the thread keeps its goroutine. While the thread waits for the word, a
// request of another process waits for the thread's next look. A request of this process wakes the thread (Ask):
// otherwise a move of many parts would wait for each part.

const private = 128 // FUTEX_PRIVATE_FLAG

// calls counts the results that other threads have handed back, and their requests.
var calls atomic.Uint32

func wake() {
	calls.Add(1)
	_, _, _ = unix.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&calls)), 1|private /* FUTEX_WAKE */, math.MaxInt32)
}

// awaitCall waits until there were more calls, for the given milliseconds at most.
func awaitCall(before uint32, milliseconds int) {
	within := unix.NsecToTimespec(int64(milliseconds) * int64(time.Millisecond))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&calls)), 0|private, /* FUTEX_WAIT */
		uintptr(before), uintptr(unsafe.Pointer(&within)), 0, 0)
}
