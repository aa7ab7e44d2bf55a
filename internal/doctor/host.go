package doctor

import (
	"fmt"
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
	AddressSpaceLimitBytes uint64 `json:"address_space_limit_bytes"` // RLIMIT_AS; 0 for none
}

func (h Host) String() string {
	text := readable.Short(h.MemoryAvailableBytes) + " of memory available"
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
	h.AddressSpaceLimitBytes = addressSpaceLimit(self)
	r.examineAddressSpace()
}

// addressSpaceNeeded covers the driver itself (it took 13 GiB with one GPU; cuInit fails at 8) and a little memory. The
// engine's arenas shrink to what a limit leaves.
const addressSpaceNeeded = 16 << 30

// Below addressSpaceAmple the engine's threads do not make the driver's data for each thread ahead, because C's
// allocator would reserve 64 MiB for each.
const addressSpaceAmple = 64 << 30

// examineAddressSpace: the other limits of docs/rationale.md ("Limits") end no program, and the library names them.
func (r *Report) examineAddressSpace() {
	if limit := r.Host.AddressSpaceLimitBytes; limit != 0 && limit < addressSpaceAmple {
		severity, why := Warning, "when it is used up, a thread's first call of the driver ends the program"
		if limit < addressSpaceNeeded {
			severity, why = Error, "the CUDA driver alone takes 13 GiB"
		}
		r.add(severity, "address-space",
			fmt.Sprintf("the address space is limited to %s; %s", readable.Short(limit), why),
			"start the program under ulimit -v unlimited (memory limits of control groups do no harm)")
	}
}

// addressSpaceLimit returns a process's soft limit in bytes; 0: there is none.
func addressSpaceLimit(process string) (limit uint64) {
	text, _ := os.ReadFile("/proc/" + process + "/limits")
	if found := regexp.MustCompile(`(?m)^Max address space\s+(\d+)`).FindSubmatch(text); found != nil {
		limit, _ = strconv.ParseUint(string(found[1]), 10, 64)
	}
	return limit
}
