// Package process distinguishes processes that have had the same number.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Started returns when a process started, in clock ticks since boot, which distinguishes it from another that gets its
// number later. It reports whether the process is a zombie: all of its threads have ended, and its parent has not
// waited for it yet. A process lives while any of its threads does. (proc_pid_stat(5)) Errors: fs.ErrNotExist when
// there is no such process.
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

// Ending reports whether a process that started then has ended or is about to: none of its threads comes back from the
// kernel. Its descriptors are closed then, while it does not count as ended yet.
func Ending(pid int, start uint64) bool {
	if Ended(pid, start) {
		return true
	}
	const exiting = 0x4 // PF_EXITING (include/linux/sched.h)
	threads := threadsOf(pid)
	for _, thread := range threads {
		fields, err := statIn(thread)
		if err == nil {
			flags, _ := strconv.ParseUint(fields[6], 10, 64)
			if flags&exiting == 0 {
				return false
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	// One of them may have made a thread that was not seen. The next look sees that thread.
	return len(threads) > 0 && !slices.ContainsFunc(threadsOf(pid), func(thread string) bool {
		return !slices.Contains(threads, thread)
	})
}

func threadsOf(pid int) []string {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	return threads
}

// Numbers returns a process's numbers in the PID namespaces from that of /proc down to its own; none where that is not
// known. (NSpid in proc_pid_status(5))
func Numbers(pid int) []string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(status), "\nNSpid:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.Fields(line)
}

// Preloads reports whether a process has the library. Its environment does not say: a program may overwrite that
// (setproctitle).
func Preloads(pid int) bool {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return strings.Contains(string(maps), "/libtms.so\n")
}

func stat(pid int) ([]string, error) { return statIn(fmt.Sprintf("/proc/%d", pid)) }

// statIn returns the fields of a process's or thread's stat from the third on, at least 20 of them.
func statIn(folder string) ([]string, error) {
	stat, err := os.ReadFile(folder + "/stat")
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist // it ended while we read
	}
	if err != nil {
		return nil, err
	}
	// Field 2, the name, may have spaces and parentheses in it. The text after it starts with field 3.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("%s/stat has %d fields", folder, len(fields))
	}
	return fields, nil
}
