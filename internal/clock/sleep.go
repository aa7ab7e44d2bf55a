// Package clock sleeps without the Go runtime's timers: the first of those makes descriptors (an epoll and an
// eventfd), which a host that closes all descriptors would take away.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Sleep keeps the calling goroutine and its thread for a time. (nanosleep)
func Sleep(d time.Duration) {
	left := unix.NsecToTimespec(int64(max(0, d)))
	for unix.Nanosleep(&left, &left) == unix.EINTR {
	}
}
