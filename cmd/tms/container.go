package main

import (
	"cmp"
	"os"
	"regexp"
	"strings"
)

// container is where a process runs, by its control group; "" where that names none.
type container struct {
	Container string `json:"container,omitempty"` // 64 hexadecimal digits, as container runtimes number them
	Pod       string `json:"pod,omitempty"`       // the UID of a Kubernetes pod
}

var (
	containerNumber = regexp.MustCompile(`(?m)[/:-]([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	podNumber       = regexp.MustCompile(`(?m)[/-]pod([0-9a-f]{8}(?:[_-][0-9a-f]{4}){3}[_-][0-9a-f]{12}|[0-9a-f]{32})` +
		`(?:\.slice)?(?:[/:]|$)`)
)

// containerOf reads /proc/PID/cgroup: of Docker, Podman, containerd and CRI-O, below either version of control groups.
func containerOf(membership string) (found container) {
	text, _ := os.ReadFile(membership)
	if number := containerNumber.FindSubmatch(text); number != nil {
		found.Container = string(number[1])
	}
	if number := podNumber.FindSubmatch(text); number != nil {
		found.Pod = strings.ReplaceAll(string(number[1]), "_", "-") // systemd uses - for nesting
	}
	return found
}

// short returns enough digits to tell it from others.
func (c container) short() string {
	number := cmp.Or(c.Pod, c.Container)
	return number[:min(8, len(number))]
}
