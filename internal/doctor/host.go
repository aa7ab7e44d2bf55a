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

func (r *Report) examineHost(p *process) {
	self := "self"
	if p != nil {
		self = strconv.Itoa(p.pid)
	}
	h := &r.Host
	h.MemoryAvailableBytes = memoryAvailable(self)
	h.AddressSpaceLimitBytes, _ = limitOf(self, "Max address space")
	h.TransparentHugepages = transparentHugepages()

	r.examineLimits(self, p)
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
