package doctor

import (
	"math"
	"os"
	"regexp"
	"strconv"

	"tms/internal/hostmemory"
	"tms/internal/readable"
)

// Host has what backups in host memory, and the start of the engine, depend on.
type Host struct {
	MemoryAvailableBytes   uint64 `json:"memory_available_bytes"`    // within the control group's limit, too
	TransparentHugepages   string `json:"transparent_hugepages"`     // always, madvise, never; "" unknown
	AddressSpaceLimitBytes uint64 `json:"address_space_limit_bytes"` // RLIMIT_AS; 0 for none
}

func (h Host) String() string {
	text := readable.Short(h.MemoryAvailableBytes) + " of memory available"
	if h.TransparentHugepages != "" {
		text += ", transparent huge pages " + h.TransparentHugepages
	}
	if h.AddressSpaceLimitBytes != 0 {
		text += ", address space limited to " + readable.Short(h.AddressSpaceLimitBytes)
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
}

var chosen = regexp.MustCompile(`\[(\w+)\]`)

func transparentHugepages() string {
	text, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if found := chosen.FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return ""
}
