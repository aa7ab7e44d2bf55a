package doctor

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"

	"tms/internal/hostmemory"
)

// Host has what backups in host memory, and the start of the engine, depend on.
type Host struct {
	MemoryAvailableBytes   uint64 `json:"memory_available_bytes"`    // also within the control group's limit
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
	if available := min(hostmemory.Machine(), hostmemory.Group(self)); available != math.MaxUint64 {
		h.MemoryAvailableBytes = available // pinned backups count against the control group, too
	}
	h.AddressSpaceLimitBytes, _ = limitOf(self, "Max address space")
	h.TransparentHugepages = transparentHugepages()

	r.examineLimits(self, p)
	if h.TransparentHugepages == "never" {
		r.add(Note, "hugepages", "transparent huge pages are off, so pinning host memory for backups takes nearly "+
			"twice as long",
			"as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
	}
	var most uint64
	for _, d := range r.Devices {
		most = max(most, d.MemoryBytes)
	}
	if h.MemoryAvailableBytes != 0 && h.MemoryAvailableBytes < most {
		r.add(Note, "host-memory",
			fmt.Sprintf("%s of host memory is available; backups of a full device need %s",
				size(h.MemoryAvailableBytes), size(most)),
			"keep backups only of contents that cannot be made again")
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

func readNumber(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
