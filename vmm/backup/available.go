package backup

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// checkHostMemory refuses a backup that the machine, or the control group, has no memory for:
// touching memory that is not there ends in the kernel killing a process, most likely this one.
func checkHostMemory(need uint64) error {
	available := min(machineAvailable("/proc/meminfo"), groupAvailable("/proc/self/cgroup", "/sys/fs/cgroup"))
	if need > available {
		return fmt.Errorf("%w: %d bytes are needed and %d are available; free host memory, pause fewer tags at once, or use no backup",
			ErrHostMemory, need, available)
	}
	return nil
}

// machineAvailable is MemAvailable and SwapFree of /proc/meminfo, in bytes; unlimited if unknown, or
// if the machine is given memory as it needs it.
func machineAvailable(meminfo string) uint64 {
	text, err := os.ReadFile(meminfo)
	if err != nil || growing() {
		return math.MaxUint64
	}
	var available uint64
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		if name == "MemAvailable" || name == "SwapFree" {
			if kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64); err == nil {
				available += kib << 10
			}
		}
	}
	if available == 0 {
		return math.MaxUint64
	}
	return available
}

// growing tells whether a hypervisor plugs in memory as this machine uses it: what it has now then
// says nothing about what it can have. (Device type 24, memory, of the virtio specification.)
func growing() bool {
	devices, _ := filepath.Glob("/sys/bus/virtio/devices/*/device")
	for _, path := range devices {
		if kind, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(kind)) == "0x0018" {
			return true
		}
	}
	return false
}

// groupAvailable is what the control groups of the process (version 2) leave, in bytes.
func groupAvailable(membership, root string) uint64 {
	available := uint64(math.MaxUint64)
	text, err := os.ReadFile(membership)
	if err != nil {
		return available
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		path, found := strings.CutPrefix(line, "0::")
		if !found {
			continue
		}
		for directory := path; ; directory = filepath.Dir(directory) {
			limit, limited := number(filepath.Join(root, directory, "memory.max"))
			used, known := number(filepath.Join(root, directory, "memory.current"))
			if limited && known {
				left := uint64(0)
				if used < limit {
					left = limit - used
				}
				// The page cache that the group can drop counts as free.
				available = min(available, left+inactiveFile(filepath.Join(root, directory, "memory.stat")))
			}
			if directory == "/" || directory == "." {
				return available
			}
		}
	}
	return available
}

func number(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
	return n, err == nil
}

func inactiveFile(path string) uint64 {
	text, _ := os.ReadFile(path)
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, found := strings.CutPrefix(line, "inactive_file "); found {
			n, _ := strconv.ParseUint(value, 10, 64)
			return n
		}
	}
	return 0
}
