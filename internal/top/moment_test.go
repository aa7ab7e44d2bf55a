package top

import (
	"fmt"
	"slices"
	"time"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

// tag is a tag of a process, in short.
type tag struct {
	Device                            int
	Name, Where, Doing                string
	Live, Held, Paused, Slack, Backup uint64
	LastPause, LastResume             float64
	PausedSince                       time.Time
	Done, Total                       uint64
}

// process returns what package fleet says of a process with these tags.
func process(pid int, command string, tags ...tag) fleet.Process {
	p := fleet.Process{ProcessState: control.ProcessState{PID: pid, Command: command}}
	for _, t := range tags {
		full := stats.Tag{Tag: t.Name, LiveBytes: t.Live, PhysicalBytes: t.Held, PausedBytes: t.Paused, SlackBytes: t.Slack,
			BackupBytes: t.Backup, LastPauseSeconds: t.LastPause, LastResumeSeconds: t.LastResume,
			PausedSince: float64(t.PausedSince.UnixMilli()) / 1000}
		switch t.Where {
		case "host":
			full.HostBytes = t.Backup
		case "disk":
			full.DiskBytes = t.Backup
		}
		devices := &p.Stats.Devices
		at := slices.IndexFunc(*devices, func(d stats.Device) bool { return d.Device == t.Device })
		if at < 0 {
			at = len(*devices)
			*devices = append(*devices, stats.Device{Device: t.Device, GPU: &t.Device,
				UUID: fmt.Sprintf("GPU-%d", t.Device)})
		}
		if t.Doing != "" {
			p.Doing = t.Doing
			(*devices)[at].Progress = &stats.Progress{Operation: t.Doing, Done: t.Done, Total: t.Total}
		}
		(*devices)[at].Tags = append((*devices)[at].Tags, full)
	}
	return p
}
