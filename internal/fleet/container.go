package fleet

import (
	"cmp"
	"os"
	"regexp"
	"strings"
)

// Cgroup is where a process runs. It is empty where the control group of the process names no container.
type Cgroup struct {
	Container string `json:"container,omitempty"` // 64 hexadecimal digits, as container runtimes number them
	Pod       string `json:"pod,omitempty"`       // the UID of a Kubernetes pod
}

var (
	containerNumber = regexp.MustCompile(`(?m)[/:-]([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	podNumber       = regexp.MustCompile(`(?m)[/-]pod([0-9a-f]{8}(?:[_-][0-9a-f]{4}){3}[_-][0-9a-f]{12}|[0-9a-f]{32})` +
		`(?:\.slice)?(?:[/:]|$)`)
)

// cgroupOf finds the container of a process that has this number here.
func cgroupOf(pid int) Cgroup {
	membership, _ := os.ReadFile(procFile(pid, "cgroup"))
	return parseMembership(membership)
}

// parseMembership reads /proc/PID/cgroup: of Docker, Podman, containerd and CRI-O, below either version of control
// groups.
func parseMembership(membership []byte) (c Cgroup) {
	if number := containerNumber.FindSubmatch(membership); number != nil {
		c.Container = string(number[1])
	}
	if number := podNumber.FindSubmatch(membership); number != nil {
		c.Pod = strings.ReplaceAll(string(number[1]), "_", "-") // systemd uses - for nesting
	}
	return c
}

// Short returns enough digits to tell a container from others.
func (c Cgroup) Short() string {
	number := cmp.Or(c.Pod, c.Container)
	return number[:min(8, len(number))]
}
