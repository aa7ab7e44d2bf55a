package space

import (
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// addressesLeft returns how many bytes of addresses the process may still map (RLIMIT_AS); math.MaxUint64: there is no
// limit. Where the system does not say, it returns 0.
func addressesLeft() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return math.MaxUint64
	}
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	pages, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return 0
	}
	return limit.Cur - min(limit.Cur, pages*uint64(unix.Getpagesize()))
}
