package top

import (
	"strings"
	"time"

	"tms/internal/fleet"
	"tms/vmm/stats"
)

// figures are those of a row: of a tag, or of all tags of a process.
type figures struct {
	stats.Tag
	state       string // of eleven characters at most
	done, total uint64 // of the contents that a pause or resume is copying on the device
}

// figuresOf returns the figures of one tag at a moment.
func figuresOf(p *fleet.Process, d stats.Device, tag stats.Tag, at time.Time) figures {
	f := figures{Tag: tag, state: p.Condition(d, tag, at)}
	if d.Progress != nil {
		f.done, f.total = d.Progress.Done, d.Progress.Total
	}
	return f
}

// sum returns the figures of a process.
func sum(p *fleet.Process, at time.Time) (all figures) {
	working, none := "", true
	for d, t := range p.Tags() {
		none = false
		all.LiveBytes += t.LiveBytes
		all.PhysicalBytes += t.PhysicalBytes
		all.PausedBytes += t.PausedBytes
		all.ImportedBytes += t.ImportedBytes
		all.ImportedPaused += t.ImportedPaused
		all.SlackBytes += t.SlackBytes
		all.BackupBytes += t.BackupBytes
		all.WithoutContents += t.WithoutContents
		all.PauseWithoutContents += t.PauseWithoutContents
		if f := figuresOf(p, d, t, at); f.total > 0 || f.working() {
			working = f.state
		}
	}
	switch {
	case p.Error != "":
		all.state = "no answer"
	case working != "":
		all.state = working
	case none:
		all.state = "-"
	case all.AllPaused() == 0:
		all.state = "active"
	case all.AllActive() == 0:
		all.state = "paused"
	default:
		all.state = "partly"
	}
	return all
}

// working reports whether the device is in the middle of a pause, resume or move.
func (f *figures) working() bool { return strings.HasSuffix(f.state, "ing") }

// forever stands for the time of a pause where nothing is paused.
var forever = time.Unix(1<<40, 0)

// pausedSince returns when the oldest pause was done, of what is paused now.
func pausedSince(p *fleet.Process) time.Time {
	first := forever
	for _, t := range p.Tags() {
		since := time.UnixMilli(int64(t.PausedSince * 1000))
		if t.AllPaused() > 0 && since.Before(first) {
			first = since
		}
	}
	return first
}
