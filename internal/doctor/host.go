package doctor

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Host is what backups in host memory, and the start of the engine, depend on.
type Host struct {
	MemoryAvailableBytes   uint64 `json:"memory_available_bytes"`    // within the control group's limit too
	TransparentHugepages   string `json:"transparent_hugepages"`     // always, madvise, never; "" unknown
	AddressSpaceLimitBytes uint64 `json:"address_space_limit_bytes"` // RLIMIT_AS; 0 for none
}

func (h Host) String() string {
	text := size(h.MemoryAvailableBytes) + " of memory available"
	if h.TransparentHugepages != "" {
		text += ", transparent huge pages " + h.TransparentHugepages
	}
	if h.AddressSpaceLimitBytes != 0 {
		text += ", address space limited to " + size(h.AddressSpaceLimitBytes)
	}
	return text
}

// addressSpaceNeeded is what the driver itself takes (13 GiB were seen with one GPU; cuInit fails at
// 8) and a little for memory. The engine's arenas shrink to what a limit leaves.
const addressSpaceNeeded = 16 << 30

// Below addressSpaceAmple the engine's threads do not take ahead what the driver keeps of each: C's allocator would
// reserve 64 MiB for each. dataNeeded is what the engine's runtime maps at its start, and twice as much.
const (
	addressSpaceAmple = 64 << 30
	dataNeeded        = 1 << 30
)

func (r *Report) examineHost(pid int) {
	self := "self"
	if pid != 0 {
		self = strconv.Itoa(pid)
	}
	h := &r.Host
	h.MemoryAvailableBytes = memoryAvailable(self)
	h.AddressSpaceLimitBytes = limitOf(self, "Max address space")
	h.TransparentHugepages = transparentHugepages()

	if limit := h.AddressSpaceLimitBytes; limit != 0 && limit < addressSpaceNeeded {
		r.add(Error, "address-space",
			fmt.Sprintf("the address space is limited to %s; the CUDA driver alone takes 13 GiB", size(limit)),
			"start the program under ulimit -v unlimited (memory limits of control groups do no harm)")
	}
	if limit := h.AddressSpaceLimitBytes; limit >= addressSpaceNeeded && limit < addressSpaceAmple {
		r.add(Warning, "address-space",
			fmt.Sprintf("the address space is limited to %s; when it is used up, a thread's first call of the driver ends "+
				"the program", size(limit)),
			"start the program under ulimit -v unlimited (memory limits of control groups do no harm)")
	}
	if limit := limitOf(self, "Max data size"); limit != 0 && limit < dataNeeded {
		r.add(Warning, "data-size",
			fmt.Sprintf("the data size is limited to %s; pausable memory may be refused for want of it", size(limit)),
			"start the program under ulimit -d unlimited")
	}
	if h.TransparentHugepages == "never" {
		r.add(Note, "hugepages", "transparent huge pages are off, so pinning host memory for backups takes nearly twice as long",
			"as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
	}
	var most uint64
	for _, d := range r.Devices {
		most = max(most, d.MemoryBytes)
	}
	if h.MemoryAvailableBytes != 0 && h.MemoryAvailableBytes < most {
		r.add(Note, "host-memory",
			fmt.Sprintf("%s of host memory is available; backups of a full device need %s", size(h.MemoryAvailableBytes), size(most)),
			"keep backups only of what cannot be made again")
	}
}

// limitOf is a soft limit in bytes, 0 for none.
func limitOf(process, name string) uint64 {
	text, err := os.ReadFile("/proc/" + process + "/limits")
	if err != nil {
		return 0
	}
	found := regexp.MustCompile(`(?m)^` + name + `\s+(\d+)`).FindSubmatch(text)
	if found == nil {
		return 0 // unlimited
	}
	limit, _ := strconv.ParseUint(string(found[1]), 10, 64)
	return limit
}

var chosen = regexp.MustCompile(`\[(\w+)\]`)

func transparentHugepages() string {
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		return ""
	}
	if found := chosen.FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return ""
}

var availableLine = regexp.MustCompile(`(?m)^MemAvailable:\s+(\d+) kB`)

// memoryAvailable is the machine's figure, or what is left in the control group if that is less:
// pinned backups count against it.
func memoryAvailable(process string) uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var available uint64
	if found := availableLine.FindSubmatch(text); found != nil {
		available, _ = strconv.ParseUint(string(found[1]), 10, 64)
		available <<= 10
	}
	groups, err := os.ReadFile("/proc/" + process + "/cgroup")
	if err != nil {
		return available
	}
	for _, line := range strings.Split(string(groups), "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 {
			continue
		}
		mount, limit, usage := "/sys/fs/cgroup", "memory.max", "memory.current"
		if fields[1] == "memory" { // version 1
			mount, limit, usage = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		} else if fields[1] != "" {
			continue
		}
		// In a container the path may be the host's: then only the mount's root is there.
		for folder := path.Clean("/" + fields[2]); ; folder = path.Dir(folder) {
			allowed, ok := readNumber(filepath.Join(mount, folder, limit))
			used, known := readNumber(filepath.Join(mount, folder, usage))
			if ok && known {
				available = min(available, allowed-min(used, allowed))
			}
			if folder == "/" {
				break
			}
		}
	}
	return available
}

func readNumber(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil // "max" is no number
}
