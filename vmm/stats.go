package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"tms/internal/clock"
	"tms/vmm/reclaim"
)

// Stats is what the engine holds, for tms_stats_json. Sizes are in bytes.
type Stats struct {
	Version string        `json:"version"`
	Started bool          `json:"started"`
	Devices []DeviceStats `json:"devices"`
	// Everything tells that all was paused for the driver's checkpoint, while which the driver is not asked:
	// free_bytes, backup_bytes and untracked_bytes of the devices are then 0.
	Everything bool `json:"everything"`
	// Capturing tells that a stream is being captured into a CUDA graph, so that nothing can be paused or resumed.
	Capturing bool `json:"capturing"`
	// HostAvailableBytes is the host memory that the machine and the control group leave; nil: not known, or no limit.
	HostAvailableBytes *uint64 `json:"host_available_bytes"`
	// DiskDirectory is where the next pause puts files; it may not be there yet.
	DiskDirectory string `json:"disk_directory"`
	// Waiting is what the program has given up and the driver, or the system, does not have back yet: why, and how
	// much. It is tried again at each pause, resume, trim and reset, at the end of a capture, and when memory is short.
	Waiting []reclaim.Waiting `json:"waiting"`
	// Pools is what the pools hold that serve the program under TMS_INIT_POOL: a list of torch.Stats. nil: none do.
	Pools any `json:"pools"`
}

// DeviceStats is one device's part of Stats.
type DeviceStats struct {
	Device     int    `json:"device"`
	UUID       string `json:"uuid"` // as NVML has it, "GPU-…"; "": the driver does not tell
	TotalBytes uint64 `json:"total_bytes"`
	FreeBytes  uint64 `json:"free_bytes"` // the device's own figure
	// What is used: by live allocations, by slack, by pools of this library that took theirs from cudaMalloc,
	// by contents of other devices that wait here, and by whatever else: CUDA itself, ordinary cudaMallocs,
	// other processes.
	LiveBytes      uint64     `json:"live_bytes"`
	SlackBytes     uint64     `json:"slack_bytes"`
	PoolBytes      uint64     `json:"pool_bytes"`
	BackupBytes    uint64     `json:"backup_bytes"`
	UntrackedBytes uint64     `json:"untracked_bytes"`
	Tags           []TagStats `json:"tags"`
	Progress       *Progress  `json:"progress"` // of the contents, while a pause or resume runs
}

// TagStats is one tag's part of DeviceStats.
type TagStats struct {
	Tag                  string  `json:"tag"` // as TagText writes it
	Segments             int     `json:"segments"`
	LiveBytes            uint64  `json:"live_bytes"`                   // as asked for, active and paused
	PhysicalBytes        uint64  `json:"physical_bytes"`               // device memory held now
	PausedBytes          uint64  `json:"paused_bytes"`                 // device memory given up by pausing
	SlackBytes           uint64  `json:"slack_bytes"`                  // held beyond that: rounding, freed parts of shared extents
	BackupBytes          uint64  `json:"backup_bytes"`                 // host memory, files or memory of other devices that hold contents
	HostBytes            uint64  `json:"host_bytes"`                   // of that: pinned host memory
	DiskBytes            uint64  `json:"disk_bytes"`                   // of that: files
	PauseHostBytes       uint64  `json:"pause_host_bytes"`             // pinned host memory that a pause would take beyond that
	PauseDiskBytes       uint64  `json:"pause_disk_bytes"`             // in files
	WithoutContents      uint64  `json:"without_contents_bytes"`       // of PausedBytes: what was paused without contents
	PauseWithoutContents uint64  `json:"pause_without_contents_bytes"` // what a pause would free so, for want of a backup
	ImportedBytes        uint64  `json:"imported_bytes"`               // other processes' memory, mapped now; in none of the figures above
	ImportedPaused       uint64  `json:"imported_paused_bytes"`        // and unmapped by pausing
	ImportedLost         uint64  `json:"imported_lost_bytes"`          // and gone while it was
	PausedSince          float64 `json:"paused_since"`                 // when the last pause was done, in seconds since 1970; 0: nothing is paused
	LastPauseSeconds     float64 `json:"last_pause_seconds"`
	LastResumeSeconds    float64 `json:"last_resume_seconds"`
}

// KnownStats reads the statistics without a call of the driver, which would wait while the process is checkpointed.
// Errors: of another thread's, made meanwhile, nothing can be known.
func (e *Engine) KnownStats() (Stats, error) {
	for until := time.Now().Add(knownWithin); !e.mu.TryLock(); clock.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return Stats{}, errors.New("the statistics cannot be read: a thread waits in the driver, as all of the process's CUDA calls " +
				"do until everything of it is resumed")
		}
	}
	defer e.mu.Unlock()
	stats, _ := e.recorded()
	stats.Everything = true
	return stats, nil
}

// knownWithin is how long is waited for a thread that has the records.
const knownWithin = time.Second

// Recorded is Stats as far as the records have it: without what the driver tells, and without a call of it.
func (e *Engine) Recorded() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	stats, _ := e.recorded()
	return stats
}

// Stats reads the statistics. A segment that a pause or resume works on counts as before it.
func (e *Engine) Stats() (Stats, error) {
	e.mu.Lock()
	stats, devices := e.recorded()
	e.mu.Unlock()
	for i, d := range devices {
		var err error
		own := &stats.Devices[i]
		if own.FreeBytes, err = d.freeBytes(); err != nil {
			return Stats{}, err
		}
		own.BackupBytes = e.peer.Held(d.ordinal)
		// Its parts were not read at the same moment, so it may come to less than nothing.
		used := own.TotalBytes - own.FreeBytes
		tracked := own.LiveBytes + own.SlackBytes + own.PoolBytes + own.BackupBytes
		own.UntrackedBytes = used - min(used, tracked)
	}
	return stats, nil
}

// recorded is what the records say. The caller holds e.mu.
func (e *Engine) recorded() (Stats, []*device) {
	stats := Stats{Started: true, Devices: []DeviceStats{}}
	devices := make([]*device, 0, len(e.devices))
	for _, d := range e.devices {
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(x, y *device) int { return x.ordinal - y.ordinal })
	for _, d := range devices {
		stats.Devices = append(stats.Devices, e.statsOf(d))
	}
	stats.Waiting = append(e.driver.Reclaim.Waiting(), e.waitingFrees()...)
	return stats, devices
}

// statsOf is what is known of a device without asking the driver. The caller holds e.mu.
func (e *Engine) statsOf(d *device) DeviceStats {
	stats := DeviceStats{Device: d.ordinal, UUID: d.uuid, TotalBytes: d.total, Tags: []TagStats{}, Progress: d.readProgress(),
		PoolBytes: uint64(max(0, d.pools))}
	for _, t := range d.tags {
		ts := TagStats{Tag: TagText(t.name), LastPauseSeconds: t.lastPause, LastResumeSeconds: t.lastResume}
		for _, s := range t.segments {
			if s.isImported() {
				if s.state == active {
					ts.ImportedBytes += s.imported.size
				} else if s.imported.lost {
					ts.ImportedLost += s.imported.size
				} else {
					ts.ImportedPaused += s.imported.size
				}
				continue
			}
			live := s.size
			if s.slab == nil {
				ts.Segments++
			} else {
				ts.Segments += s.slab.Live()
				live = s.slab.Bytes()
			}
			ts.LiveBytes += live
			ts.SlackBytes += s.length() - live
			if s.state != paused || s.owner != aTransition && s.extent != nil {
				ts.PhysicalBytes += s.length()
				stats.LiveBytes += live
				stats.SlackBytes += s.length() - live
			} else {
				ts.PausedBytes += s.length()
				if s.contents == nil || !s.current {
					ts.WithoutContents += s.length()
				}
			}
			if s.state == active && s.backup == BackupNone && s.pausable() {
				ts.PauseWithoutContents += s.length()
			}
			if s.state == active && s.backup == BackupHost && (s.contents == nil || s.contents.Host() == 0) {
				ts.PauseHostBytes += s.length()
			}
			if s.state == active && s.backup == BackupDisk {
				ts.PauseDiskBytes += s.length()
			}
			if s.contents != nil {
				bytes := s.contents.Bytes()
				ts.BackupBytes += bytes
				switch s.contents.Store() {
				case e.host:
					ts.HostBytes += bytes
				case e.disk:
					ts.DiskBytes += bytes
				}
			}
		}
		if ts.PausedBytes+ts.ImportedPaused > 0 {
			ts.PausedSince = t.pausedSince
		}
		bytes := t.slackBytes(d.granularity)
		ts.SlackBytes += bytes
		ts.PhysicalBytes += bytes
		stats.SlackBytes += bytes
		stats.Tags = append(stats.Tags, ts)
	}
	slices.SortFunc(stats.Tags, func(x, y TagStats) int { return cmp.Compare(x.Tag, y.Tag) })
	return stats
}

// TagText is a tag's name for JSON, which holds nothing but UTF-8: in a name that is not, each byte at fault
// becomes \xNN and each backslash two. So it does in a name that contains \x, so that no two names look the same.
func TagText(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, `\x`) {
		return name
	}
	var text strings.Builder
	for len(name) > 0 {
		r, size := utf8.DecodeRuneInString(name)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&text, `\x%02x`, name[0])
		case r == '\\':
			text.WriteString(`\\`)
		default:
			text.WriteString(name[:size])
		}
		name = name[size:]
	}
	return text.String()
}

// TagName is the name of which TagText made text.
func TagName(text string) string {
	if !strings.Contains(text, `\x`) {
		return text
	}
	var name strings.Builder
	for len(text) > 0 {
		size := 1
		if value, err := strconv.ParseUint(text[min(2, len(text)):min(4, len(text))], 16, 8); err == nil && strings.HasPrefix(text, `\x`) {
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
