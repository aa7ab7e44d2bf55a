package doctor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

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

// addressSpaceNeeded covers the driver itself (it took 13 GiB with one GPU; cuInit fails at 8) and a little memory. The
// engine's arenas shrink to what a limit leaves.
const addressSpaceNeeded = 16 << 30

// Below addressSpaceAmple the engine's threads do not make the driver's data for each thread ahead, because C's
// allocator would reserve 64 MiB for each. dataNeeded has room for what the engine's runtime maps at its start.
const (
	addressSpaceAmple = 64 << 30
	dataNeeded        = 1 << 30
)

// What the engine's start takes: threads (preload/shim.h), and kernel mappings, of which it took 180, with 128 to
// spare. A process has some hundreds itself, with PyTorch some thousands.
const (
	threadsAtStart   = 36
	threadsPerDevice = 13
	mappingsNeeded   = 512
	mappingsFew      = 8 << 10
)

// examineLimits looks at the limits of docs/rationale.md ("Limits"). A nil process is not running yet.
func (r *Report) examineLimits(self string, p *process) {
	if limit := r.Host.AddressSpaceLimitBytes; limit != 0 && limit < addressSpaceAmple {
		severity, why := Warning, "when it is used up, a thread's first call of the driver ends the program"
		if limit < addressSpaceNeeded {
			severity, why = Error, "the CUDA driver alone takes 13 GiB"
		}
		r.add(severity, "address-space",
			fmt.Sprintf("the address space is limited to %s; %s", readable.Short(limit), why),
			"start the program under ulimit -v unlimited (memory limits of control groups do no harm)")
	}
	if limit, limited := limitOf(self, "Max data size"); limited && limit < dataNeeded {
		r.add(Warning, "data-size",
			fmt.Sprintf("the data size is limited to %s; pausable memory may be refused for want of it",
				readable.Short(limit)),
			"start the program under ulimit -d unlimited")
	}
	r.examineThreads(self)
	text, _ := os.ReadFile("/proc/sys/vm/max_map_count")
	most, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	const raise = "as root: sysctl vm.max_map_count=262144"
	if err == nil && p != nil && most < uint64(p.mappings)+mappingsNeeded {
		r.add(Warning, "mappings",
			fmt.Sprintf("the process has %d of the %d mappings that vm.max_map_count allows; pausable memory, whose "+
				"start needs up to %d, may be refused", p.mappings, most, mappingsNeeded), raise)
	} else if err == nil && most < mappingsFew {
		r.add(Warning, "mappings", fmt.Sprintf("vm.max_map_count=%d is low: a program with PyTorch has thousands of "+
			"mappings, and when there are no more, memory is refused", most), raise)
	}
	adapters, _ := filepath.Glob("/sys/class/infiniband/*")
	if limit, limited := limitOf(self, "Max locked memory"); limited {
		r.examineLockedMemory(limit, len(adapters))
	}
}

// examineThreads counts as the kernel does: all threads of the user, as far as /proc shows them.
func (r *Report) examineThreads(self string) {
	limit, limited := limitOf(self, "Max processes")
	user, above := userOf(self)
	if !limited || above {
		return
	}
	var running uint64
	statuses, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range statuses {
		if status, err := os.ReadFile(path); err == nil && field(status, "Uid") == user {
			threads, _ := strconv.ParseUint(field(status, "Threads"), 10, 64)
			running += threads
		}
	}
	needed := threadsAtStart + threadsPerDevice*uint64(max(1, len(r.Devices)))
	if limit < running+needed {
		r.add(Warning, "threads",
			fmt.Sprintf("user %s may have %d processes and threads and has %d; pausable memory needs %d threads more "+
				"and is refused without", user, limit, running, needed),
			"start the program under ulimit -u unlimited, or end others of this user")
	}
}

// userOf returns a process's user, and whether the kernel does not count its threads: those of root and of processes
// with root's capabilities, but not in a user namespace (a rootless container).
func userOf(process string) (user string, above bool) {
	status, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return "", true
	}
	const adminOrResource = 1<<21 | 1<<24 // CAP_SYS_ADMIN, CAP_SYS_RESOURCE
	user = field(status, "Uid")
	capabilities, _ := strconv.ParseUint(field(status, "CapEff"), 16, 64)
	users, err := os.ReadFile("/proc/" + process + "/uid_map")
	all := err == nil && strings.Join(strings.Fields(string(users)), " ") == "0 0 4294967295"
	return user, all && (user == "0" || capabilities&adminOrResource != 0)
}

// field returns the first word of a line of /proc/PID/status.
func field(status []byte, name string) string {
	for line := range strings.Lines(string(status)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name+":" {
			return words[1]
		}
	}
	return ""
}

// examineLockedMemory: RLIMIT_MEMLOCK does not count CUDA's pinned memory, but counts what a network card registers.
func (r *Report) examineLockedMemory(limit uint64, adapters int) {
	if adapters > 0 {
		r.add(Warning, "locked-memory",
			fmt.Sprintf("locked memory is limited to %s: registering more with the InfiniBand adapters fails (NCCL "+
				"and UCX do); backups in pinned memory are not counted", readable.Short(limit)),
			"start the program under ulimit -l unlimited")
	}
}

// limitOf returns a soft limit, in its own unit; false: there is none.
func limitOf(process, name string) (limit uint64, limited bool) {
	text, _ := os.ReadFile("/proc/" + process + "/limits")
	if found := regexp.MustCompile(`(?m)^` + name + `\s+(\d+)`).FindSubmatch(text); found != nil {
		limit, err := strconv.ParseUint(string(found[1]), 10, 64)
		return limit, err == nil
	}
	return 0, false
}
