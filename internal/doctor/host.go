package doctor

import (
	"fmt"
	"os"
	"regexp"
	"strconv"

	"tms/internal/aid/readable"
)

// Host has what the start of the engine depends on.
type Host struct {
	AddressSpaceLimitBytes uint64 `json:"address_space_limit_bytes"` // RLIMIT_AS; 0 for none
}

// addressSpaceNeeded covers the driver itself (it took 13 GiB with one GPU; cuInit fails at 8) and a little memory. The
// engine's arenas shrink to what a limit leaves.
const addressSpaceNeeded = 16 << 30

// Below addressSpaceAmple the engine's threads do not make the driver's data for each thread ahead, because C's
// allocator would reserve 64 MiB for each.
const addressSpaceAmple = 64 << 30

// examineAddressSpace: the other limits of docs/design/limits.md end no program, and the library names them.
func (r *Report) examineAddressSpace(p *process) {
	self := "self"
	if p != nil {
		self = strconv.Itoa(p.pid)
	}
	text, _ := os.ReadFile("/proc/" + self + "/limits")
	if found := regexp.MustCompile(`(?m)^Max address space\s+(\d+)`).FindSubmatch(text); found != nil { // the soft limit
		r.Host.AddressSpaceLimitBytes, _ = strconv.ParseUint(string(found[1]), 10, 64)
	}
	limit := r.Host.AddressSpaceLimitBytes
	if limit != 0 && limit < addressSpaceAmple {
		severity, why := Warning, "when it is used up, a thread's first call of the driver ends the program"
		if limit < addressSpaceNeeded {
			severity, why = Error, "the CUDA driver alone takes 13 GiB"
		}
		r.add(severity, "address-space",
			fmt.Sprintf("the address space is limited to %s; %s", readable.Short(limit), why),
			"start the program under ulimit -v unlimited (memory limits of control groups do no harm)")
	}
}
