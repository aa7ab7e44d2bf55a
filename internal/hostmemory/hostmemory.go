// Package hostmemory finds out how much host memory is available.
package hostmemory

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Machine returns the bytes that this machine has available; math.MaxUint64: that is unknown, or the machine gets as
// many as it needs.
func Machine() uint64 { return machineAvailable("/proc/meminfo") }

// Group returns how many bytes the control groups of a process ("self", or a number) leave it; math.MaxUint64: no
// limit.
func Group(process string) uint64 {
	return groupAvailable(filepath.Join("/proc", process, "cgroup"), "/sys/fs/cgroup")
}

// machineAvailable returns MemAvailable and SwapFree of /proc/meminfo together.
func machineAvailable(meminfo string) uint64 {
	available := (value(meminfo, "MemAvailable:") + value(meminfo, "SwapFree:")) << 10
	if available == 0 || growing() {
		return math.MaxUint64
	}
	return available
}

// value returns the number on the line of a file that begins with a name; 0: there is none.
func value(path, name string) uint64 {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			return n
		}
	}
	return 0
}

// growing reports whether a hypervisor adds memory as this machine uses it, so that it can get more than it has.
// (Device type 24, memory, of the virtio specification.)
func growing() bool {
	kinds, _ := filepath.Glob("/sys/bus/virtio/devices/*/device")
	for _, file := range kinds {
		if kind, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(kind)) == "0x0018" {
			return true
		}
	}
	return false
}

// groupVersion is what the files of the memory controller are called.
type groupVersion struct {
	mount        string // below where control groups are mounted
	limit, used  string
	inactiveFile string // in memory.stat: the page cache that the group, and those below it, can drop
}

var (
	groupV1 = groupVersion{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	groupV2 = groupVersion{"", "memory.max", "memory.current", "inactive_file"}
)

// groupAvailable returns the bytes that the control groups of the process leave.
func groupAvailable(membership, root string) uint64 {
	available := uint64(math.MaxUint64)
	text, _ := os.ReadFile(membership)
	for line := range strings.SplitSeq(string(text), "\n") {
		fields := strings.SplitN(line, ":", 3) // hierarchy, controllers, path
		switch {
		case len(fields) < 3:
		case fields[0] == "0" && fields[1] == "":
			available = min(available, groupV2.available(root, fields[2]))
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			available = min(available, groupV1.available(root, fields[2]))
		}
	}
	return available
}

// available returns the bytes that the groups from path to the root leave. In a container the path may be the host's,
// while the mount begins at the container's own group.
func (v groupVersion) available(root, path string) uint64 {
	available := uint64(math.MaxUint64)
	for ; ; path = filepath.Dir(path) {
		directory := filepath.Join(root, v.mount, path)
		limit, limited := number(filepath.Join(directory, v.limit))
		used, known := number(filepath.Join(directory, v.used))
		if limited && known {
			left := limit - min(limit, used)
			available = min(available, left+value(filepath.Join(directory, "memory.stat"), v.inactiveFile))
		}
		if path == "/" || path == "." {
			return available
		}
	}
}

func number(path string) (uint64, bool) {
	text, _ := os.ReadFile(path)
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
	return n, err == nil
}
