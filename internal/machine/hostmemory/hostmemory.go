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

// Machine returns the bytes that this machine has available when processes take what they have promised. It returns
// math.MaxUint64 if the bytes are unknown, or the machine gets as many as it needs.
func Machine(promised []Promised) uint64 { return machine(math.MaxUint64, promised) }

func machine(swap uint64, promised []Promised) uint64 {
	available := machineAvailable("/proc/meminfo", swap)
	for _, p := range promised {
		if available < math.MaxUint64 {
			available -= min(available, p.Bytes)
		}
	}
	return available
}

// Available returns how many bytes the machine and the control groups of a process ("self", or a number) leave it, when
// others take what they have promised, or math.MaxUint64 without a limit. A promise counts for the groups that its
// process is in, and for all where that is not known.
func Available(process string, promised []Promised) uint64 {
	const proc, groups = "/proc", "/sys/fs/cgroup"
	return min(machine(groupSwap(proc, process, groups), promised), groupAvailable(proc, process, groups, promised))
}

// machineAvailable returns MemAvailable and SwapFree of /proc/meminfo together, the latter up to a limit.
func machineAvailable(meminfo string, swap uint64) uint64 {
	available := value(meminfo, "MemAvailable:")<<10 + min(swap, value(meminfo, "SwapFree:")<<10)
	if available == 0 || growing() {
		return math.MaxUint64
	}
	return available
}

// value returns the number on the line of a file that begins with a name, or 0 if no line does.
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
	mount        string   // below where control groups are mounted
	limits       []string // the least counts
	used         string
	both, inUse  string // limit and use of memory and swap together
	inactiveFile string // in memory.stat: the page cache that the group, and those below it, can drop
}

// A group above memory.high is slowed down until it hardly runs.
var (
	groupV1 = groupVersion{"memory", []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes",
		"memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_inactive_file"}
	groupV2 = groupVersion{"", []string{"memory.max", "memory.high"}, "memory.current", "", "", "inactive_file"}
)

// memberships returns the control groups of the memory controllers that a process is in, by the controllers' mounts.
func memberships(membership string) map[string]string {
	found := map[string]string{}
	text, _ := os.ReadFile(membership)
	for line := range strings.SplitSeq(string(text), "\n") {
		fields := strings.SplitN(line, ":", 3) // hierarchy, controllers, path
		switch {
		case len(fields) < 3:
		case fields[0] == "0" && fields[1] == "":
			found[groupV2.mount] = fields[2]
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			found[groupV1.mount] = fields[2]
		}
	}
	return found
}

// groupAvailable returns the bytes that the control groups of the process leave.
func groupAvailable(proc, process, root string, promised []Promised) uint64 {
	available := uint64(math.MaxUint64)
	in := memberships(filepath.Join(proc, process, "cgroup"))
	for _, v := range []groupVersion{groupV1, groupV2} {
		if path, is := in[v.mount]; is {
			available = min(available, v.available(root, path, func(group string) (bytes uint64) {
				for _, p := range promised {
					if of, known := pathsOf(p.PID, proc)[v.mount]; !known || isWithin(of, group) {
						bytes += p.Bytes
					}
				}
				return bytes
			}))
		}
	}
	return available
}

// groupSwap returns how many bytes the control groups of a process let into swap, or math.MaxUint64 without a limit.
// Groups of version 1 limit memory and swap together, which groupAvailable knows. Swap adds nothing to what a group
// leaves: contents are pinned, and no file tells how much of the group's other memory is pinned, too.
func groupSwap(proc, process, root string) uint64 {
	path, is := memberships(filepath.Join(proc, process, "cgroup"))[groupV2.mount]
	left := uint64(math.MaxUint64)
	for ; is; path = filepath.Dir(path) {
		directory := filepath.Join(root, groupV2.mount, path)
		now, _ := number(filepath.Join(directory, "memory.swap.current"))
		for _, limit := range []string{"memory.swap.max", "memory.swap.high"} { // above the latter it hardly runs
			if most, has := number(filepath.Join(directory, limit)); has {
				left = min(left, most-min(most, now))
			}
		}
		is = path != "/" && path != "."
	}
	return left
}

// isWithin reports whether a group is another, or below it.
func isWithin(group, other string) bool {
	return group == other || other == "/" || strings.HasPrefix(group, other+"/")
}

// available returns the bytes that the groups from path to the root leave beside what is promised in each. In a container
// the path may be the host's, while the mount begins at the container's own group.
func (v groupVersion) available(root, path string, promised func(group string) uint64) uint64 {
	available := uint64(math.MaxUint64)
	for ; ; path = filepath.Dir(path) {
		directory := filepath.Join(root, v.mount, path)
		left, limited := uint64(math.MaxUint64), false
		bound := func(limit, used string) {
			most, has := number(filepath.Join(directory, limit))
			now, known := number(filepath.Join(directory, used))
			if has && known {
				left, limited = min(left, most-min(most, now)), true
			}
		}
		for _, limit := range v.limits {
			bound(limit, v.used)
		}
		if v.both != "" {
			bound(v.both, v.inUse)
		}
		if limited {
			left += value(filepath.Join(directory, "memory.stat"), v.inactiveFile)
			available = min(available, left-min(left, promised(path)))
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
