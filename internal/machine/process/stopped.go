package process

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Stopped reports whether a process is stopped by a signal, by a tracer, or with its control group (docker pause).
// (proc_pid_stat(5), cgroups(7))
func Stopped(pid int) bool {
	fields, err := stat(pid)
	return err == nil && (fields[0] == "T" || fields[0] == "t" || frozen("/sys/fs/cgroup", groupsOf(pid)))
}

func groupsOf(pid int) string {
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return string(groups)
}

// frozen reports whether one of a process's control groups is frozen, or one that contains it. Both versions say so of
// each group below, too.
func frozen(root, groups string) bool {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		switch {
		case fields[0] == "0":
			if says(root+fields[2]+"/cgroup.events", "frozen 1") ||
				says(root+"/unified"+fields[2]+"/cgroup.events", "frozen 1") {
				return true
			}
		case slices.Contains(strings.Split(fields[1], ","), "freezer"):
			if says(root+"/freezer"+fields[2]+"/freezer.state", "FROZEN") {
				return true
			}
		}
	}
	return false
}

func says(file, line string) bool {
	text, _ := os.ReadFile(file)
	return slices.Contains(strings.Split(string(text), "\n"), line)
}

// Patience is how long others wait for what a stopped process holds, except in tests.
var Patience = 5 * time.Second

// Watch notes for how long the holder of something has been stopped.
type Watch struct {
	holder int
	since  time.Time
}

// Exhausted reports whether the holder has been found stopped at each look for Patience. An unknown holder is 0.
func (w *Watch) Exhausted(holder int) bool {
	if holder <= 0 || !Stopped(holder) {
		*w = Watch{}
		return false
	}
	if holder != w.holder {
		*w = Watch{holder, time.Now()}
	}
	return time.Since(w.since) >= Patience
}

// Held says that a stopped process holds something.
func Held(what string, holder int) error {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", holder))
	return fmt.Errorf("%s is held by process %d (%s), which is stopped: have it go on (kill -CONT %[2]d), or end it",
		what, holder, strings.TrimSpace(string(name)))
}
