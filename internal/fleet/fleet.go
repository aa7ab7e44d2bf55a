// Package fleet has what the processes that listen say about themselves, and what NVML says about them, in one form. A
// Process is the state that one process reports, with its container and its jobs. Measure adds what the process has on
// each device (DeviceBytes), and which named parts of that the process knows (Part). Lists of processes, the live view,
// metrics, dry runs and turns all see processes in this form. Number notes which GPU, by NVML's number, each device is.
// Nothing here changes a process.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/vmm/stats"
)

// Process is what one process says about itself, or why it has not answered.
type Process struct {
	control.ProcessState
	Cgroup
	Jobs   []string      `json:"jobs,omitempty"` // the launches that it belongs to
	Here   int           `json:"-"`              // its number in this PID namespace, or 0
	Absent bool          `json:"-"`              // it has ended, or does not listen
	Error  string        `json:"error,omitempty"`
	Bytes  []DeviceBytes `json:"bytes,omitempty"` // once Measure has found them
}

// Ask asks these processes at once, or all that listen if none is named, and waits up to within for each. The process
// with the most device memory comes first.
func Ask(within time.Duration, pids ...int) []Process {
	if len(pids) == 0 {
		pids, _ = client.List() // a directory that cannot be read has no process of this user
	}
	processes := make([]Process, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			p := &processes[i]
			connection, err := client.Connect(pid)
			p.Absent = err != nil
			if err == nil {
				defer connection.Close()
				p.Here = connection.Peer
				p.Cgroup, p.Jobs = cgroupOf(connection.Peer), JobsOf(connection.Peer)
				p.ProcessState, err = connection.Status(context.Background(), within)
			}
			if err != nil {
				p.Error = err.Error()
			}
			p.PID = pid
		})
	}
	all.Wait()
	slices.SortStableFunc(processes, func(x, y Process) int { return cmp.Compare(y.Held(), x.Held()) })
	return processes
}

// OfJob keeps only the processes of a job, or all if job is "".
func OfJob(job string, processes []Process) []Process {
	return slices.DeleteFunc(processes, func(p Process) bool { return job != "" && !slices.Contains(p.Jobs, job) })
}

// Title returns the command, with the container that it runs in.
func (p *Process) Title() string {
	if short := p.Short(); short != "" {
		return short + ": " + readable.Printable(p.Command)
	}
	return readable.Printable(p.Command)
}

// Brief is Title without the folders of the program.
func (p *Process) Brief() string {
	program, arguments, _ := strings.Cut(p.Command, " ")
	text := strings.TrimSpace(program[strings.LastIndexByte(program, '/')+1:] + " " + arguments)
	if short := p.Short(); short != "" {
		text = short + ": " + text
	}
	return readable.Printable(text)
}

// Condition says in eleven characters at most, unless the process names an operation of its own, what a tag of the
// process is doing, or in which state it is and for how long.
func (p *Process) Condition(d stats.Device, tag stats.Tag, now time.Time) string {
	switch {
	case p.Lost():
		return "lost"
	case p.Doing != "" && d.Progress != nil:
		return Doing(d.Progress.Operation)
	case p.Share != nil && p.Share.Waited >= 0:
		return "waits " + readable.Age(control.Seconds(p.Share.Waited))
	case tag.AllPaused() == 0:
		return "active"
	}
	word := "paused"
	if p.Stats.Everything {
		word = "out" // the driver has the rest
	}
	if tag.AllActive() > 0 {
		word = "partly"
	}
	return word + " " + readable.Age(now.Sub(time.UnixMilli(int64(tag.PausedSince*1000))))
}

// Doing names what a process says that it is doing: pausing, resuming, moving.
func Doing(operation string) string {
	return strings.TrimSuffix(readable.Printable(operation), "e") + "ing"
}

// Place returns where the contents of a tag wait: host, disk, peer or mixed, or "" if no contents wait.
func Place(tag stats.Tag) string {
	switch tag.BackupBytes {
	case 0:
		return ""
	case tag.HostBytes:
		return "host"
	case tag.DiskBytes:
		return "disk"
	case tag.PeerBytes():
		return "peer"
	}
	return "mixed"
}

// Progress sums how far processes have come with what they are doing, in bytes of contents. It returns what they do, or
// "" if none copies contents.
func Progress(processes []Process) (doing string, done, total uint64) {
	for _, p := range processes {
		for _, d := range p.Stats.Devices {
			if d.Progress != nil {
				done, total, doing = done+d.Progress.Done, total+d.Progress.Total, Doing(d.Progress.Operation)
			}
		}
	}
	return doing, min(done, total), total
}

// Distinct returns each value once, and no zero value.
func Distinct[T comparable](values []T) (distinct []T) {
	var zero T
	for _, value := range values {
		if value != zero && !slices.Contains(distinct, value) {
			distinct = append(distinct, value)
		}
	}
	return distinct
}

// procFile is the path of what the kernel tells about a process.
func procFile(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
