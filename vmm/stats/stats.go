// Package stats has the types by which the engine reports what it holds, in tms_stats_json and to other processes. It
// does not import the engine, so a reader of statistics does not link it. Sizes are in bytes.
package stats

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Stats is what the engine holds.
type Stats struct {
	Devices []Device `json:"devices"`
	// Waiting is what the program has given up but the driver or the system does not have back yet: why, and how much.
	// The engine tries again at each pause, resume, trim and reset, at the end of a capture, and when memory is short.
	Waiting []Waiting `json:"waiting"`
}

// Device is one device's part of Stats.
type Device struct {
	Device int    `json:"device"`
	UUID   string `json:"uuid"` // as NVML has it, "GPU-…", or "" if the driver does not report it
	// GPU is NVML's number of it, which the tms command adds, or nil if NVML does not show it. The process has none.
	GPU        *int   `json:"gpu,omitempty"`
	Node       int    `json:"node"` // the NUMA node of the nearest host memory, or -1 if unknown
	TotalBytes uint64 `json:"total_bytes"`
	FreeBytes  uint64 `json:"free_bytes"` // the device's own figure
	// What uses memory: active allocations (a tag's LiveBytes count paused ones, too), slack, pools of this library that
	// took theirs from cudaMalloc, contents of other devices that wait here, and everything else: CUDA itself, ordinary
	// cudaMallocs, other processes.
	LiveBytes      uint64    `json:"live_bytes"`
	SlackBytes     uint64    `json:"slack_bytes"`
	PoolBytes      uint64    `json:"pool_bytes"`
	BackupBytes    uint64    `json:"backup_bytes"`
	UntrackedBytes uint64    `json:"untracked_bytes"`
	Tags           []Tag     `json:"tags"`
	Peers          []string  `json:"peers"`    // the devices, by UUID, to which the process can copy its memory directly
	Progress       *Progress `json:"progress"` // of the contents, while a pause or resume runs
	// So far, for as long as the process lives: they never decrease.
	Pauses  Total `json:"pauses"`
	Resumes Total `json:"resumes"`
	// The most that the process may have of the device, or 0 for no limit, and how many allocations that has refused.
	LimitBytes   uint64 `json:"limit_bytes"`
	LimitRefused uint64 `json:"limit_refused"`
}

// DeviceName names a device by the process's number of it and the UUID. A process does not know NVML's numbers; the tms
// command puts them in (fleet.Renamed).
func DeviceName(ordinal int, uuid string) string {
	if uuid == "" {
		return fmt.Sprint("device ", ordinal)
	}
	return fmt.Sprintf("device %d (%s)", ordinal, uuid)
}

// AddPools adds what pools have taken of the device from CUDA itself, which was untracked.
func (d *Device) AddPools(bytes uint64) {
	d.PoolBytes += bytes
	d.UntrackedBytes -= min(d.UntrackedBytes, bytes) // the figures come from different moments
}

// Reserve returns how many of a device's total bytes stay free where processes that share it can make room for that:
// for memory that is not pausable, such as a context (about 0.5 GiB) and the code that the driver loads with a kernel.
func Reserve(total uint64) uint64 { return min(1<<30, total/16) }

// Total sums up the pauses or the resumes of a device's memory.
type Total struct {
	Count         uint64  `json:"count"`          // those that succeeded
	Bytes         uint64  `json:"bytes"`          // of device memory given back, or taken again
	ContentsBytes uint64  `json:"contents_bytes"` // of contents saved, or brought back
	Seconds       float64 `json:"seconds"`        // of those that succeeded
}

// Tag is one tag's part of Device.
type Tag struct {
	Tag                  string  `json:"tag"` // as TagText writes it
	Segments             int     `json:"segments"`
	LiveBytes            uint64  `json:"live_bytes"`                   // as asked for, active and paused
	PhysicalBytes        uint64  `json:"physical_bytes"`               // device memory held now
	PausedBytes          uint64  `json:"paused_bytes"`                 // device memory given up by pausing
	SlackBytes           uint64  `json:"slack_bytes"`                  // held beyond that: rounding, slack
	BackupBytes          uint64  `json:"backup_bytes"`                 // memory and files that hold contents
	HostBytes            uint64  `json:"host_bytes"`                   // of that: pinned host memory
	DiskBytes            uint64  `json:"disk_bytes"`                   // of that: files
	PauseHostBytes       uint64  `json:"pause_host_bytes"`             // host memory that a pause would add
	PauseDiskBytes       uint64  `json:"pause_disk_bytes"`             // files that a pause would add
	WithoutContents      uint64  `json:"without_contents_bytes"`       // of PausedBytes: paused without contents
	PauseWithoutContents uint64  `json:"pause_without_contents_bytes"` // that a pause would free without contents
	ImportedBytes        uint64  `json:"imported_bytes"`               // of other processes, in no figure above
	ImportedPaused       uint64  `json:"imported_paused_bytes"`        // and unmapped by pausing
	ImportedLost         uint64  `json:"imported_lost_bytes"`          // and gone while it was
	PausedSince          float64 `json:"paused_since"`                 // seconds since 1970, or 0 if none is paused
	LastPauseSeconds     float64 `json:"last_pause_seconds"`
	LastResumeSeconds    float64 `json:"last_resume_seconds"`
}

// AllPaused returns how many bytes pausing has taken from the program: its own, and other processes' bytes.
func (t Tag) AllPaused() uint64 { return t.PausedBytes + t.ImportedPaused }

// AllActive returns how many bytes a pause would take.
func (t Tag) AllActive() uint64 { return t.PhysicalBytes + t.ImportedBytes }

// PeerBytes returns how many bytes of other devices hold contents.
func (t Tag) PeerBytes() uint64 { return t.BackupBytes - t.HostBytes - t.DiskBytes }

// Progress is how far a pause or resume has come with the contents of a device.
type Progress struct {
	Device    int    `json:"-"`
	Operation string `json:"operation"`   // "pause", "resume" or "move"
	Done      uint64 `json:"done_bytes"`  // copied so far
	Total     uint64 `json:"total_bytes"` // to be copied
}

// Destinations say, by the UUIDs of devices, where a process moves what it has on them.
type Destinations map[string]Destination

// Destination is another device.
type Destination struct {
	Device string `json:"device"` // its UUID
	Room   uint64 `json:"room"`   // bytes that its contents may take there before it comes
}

// Waiting counts the things of one kind that wait for one reason.
type Waiting struct {
	What  string `json:"what"`
	Why   string `json:"why"`
	Count int    `json:"count"`
	Bytes uint64 `json:"bytes"` // 0 where that is not known
}

// Count adds a thing to a list.
func Count(list []Waiting, what, why string, bytes uint64) []Waiting {
	for i := range list {
		if w := &list[i]; w.What == what && w.Why == why {
			w.Count++
			w.Bytes += bytes
			return list
		}
	}
	return append(list, Waiting{what, why, 1, bytes})
}

// TagText returns a tag's name for JSON, which holds nothing but UTF-8. In a name that is not UTF-8, or contains \x,
// each byte at fault becomes \xNN and each backslash two, so that no two names look the same.
func TagText(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, `\x`) {
		return name
	}
	var text strings.Builder
	for at, r := range name {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(name[at:], "\ufffd"):
			fmt.Fprintf(&text, `\x%02x`, name[at])
		case r == '\\':
			text.WriteString(`\\`)
		default:
			text.WriteRune(r)
		}
	}
	return text.String()
}

// TagName returns the name that TagText made text from.
func TagName(text string) string {
	if !strings.Contains(text, `\x`) {
		return text
	}
	var name strings.Builder
	for len(text) > 0 {
		size := 1
		value, err := strconv.ParseUint(text[min(2, len(text)):min(4, len(text))], 16, 8)
		if err == nil && strings.HasPrefix(text, `\x`) {
			name.WriteByte(byte(value))
			size = 4
		} else {
			name.WriteByte(text[0])
			if strings.HasPrefix(text, `\\`) {
				size = 2
			}
		}
		text = text[size:]
	}
	return name.String()
}
