// Package process distinguishes processes that have had the same number.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Started returns when a process started, in clock ticks since boot, which distinguishes it from another that gets its
// number later. zombie: all of it has ended and nobody has waited for it yet; a process of which only the main thread
// has ended lives. (proc_pid_stat(5)) Errors: fs.ErrNotExist when there is no such process.
func Started(pid int) (start uint64, zombie bool, err error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, false, err
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	others := fields[17] != "0" && fields[17] != "1" // threads
	return start, (fields[0] == "Z" || fields[0] == "X") && !others, err
}

// Ended reports whether a process that started then has certainly ended.
func Ended(pid int, start uint64) bool {
	now, zombie, err := Started(pid)
	return errors.Is(err, fs.ErrNotExist) || err == nil && (zombie || now != start)
}

// Numbers returns a process's numbers in the PID namespaces from that of /proc down to its own; none where that is not
// known. (NSpid in proc_pid_status(5))
func Numbers(pid int) []string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(status), "\nNSpid:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.Fields(line)
}

// stat returns the fields of /proc/PID/stat from the third on, at least 20 of them.
func stat(pid int) ([]string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist // it ended while we read
	}
	if err != nil {
		return nil, err
	}
	// Field 2, the name, may have spaces and parentheses in it. What follows starts with field 3.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields, nil
}
