package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

// event is a completed pause or resume, of all its tags, who keeps a process paused, or what a limit has refused.
type event struct {
	at      time.Time
	pid     int
	what    string // "paused" or "resumed"
	tags    []string
	on      []string // the GPUs, those with a number
	bytes   uint64
	unkept  uint64 // for a pause: the part of that without contents
	seconds float64
	refused uint64 // allocations, by a limit of that many bytes
	whose   string // who keeps the process paused
}

// sameOperation is the most, in seconds, by which the times of one operation differ between its tags.
const sameOperation = 1e-3

// changes are the pauses, resumes and refusals of a process between two looks. A pause or resume that another undid
// between the looks is shown without bytes, because these are unknown.
func changes(before, now *fleet.Process, at time.Time) (found []event) {
	add := func(what string, on stats.Device, tag string, bytes, unkept uint64, seconds float64) {
		i := slices.IndexFunc(found, func(e event) bool {
			return e.what == what && math.Abs(e.seconds-seconds) < sameOperation
		})
		if i < 0 {
			i = len(found)
			found = append(found, event{at: at, pid: now.PID, what: what, seconds: seconds})
		}
		e := &found[i]
		e.bytes += bytes
		e.unkept += unkept
		e.seconds = max(e.seconds, seconds)
		if !slices.Contains(e.tags, tag) {
			e.tags = append(e.tags, tag)
		}
		if on.GPU == nil {
			return
		}
		if name := strconv.Itoa(*on.GPU); !slices.Contains(e.on, name) {
			e.on = append(e.on, name)
		}
	}
	for d, tag := range now.Tags() {
		was, known := tagOf(before, d.Device, tag.Tag)
		if !known {
			continue
		}
		paused, resumed := tag.LastPauseSeconds != was.LastPauseSeconds, tag.LastResumeSeconds != was.LastResumeSeconds
		if paused && resumed && tag.AllPaused() > 0 { // it was resumed first
			add("resumed", d, tag.Tag, was.PausedBytes, 0, tag.LastResumeSeconds)
			was, resumed = stats.Tag{}, false
		}
		if paused {
			add("paused", d, tag.Tag, tag.PausedBytes-min(was.PausedBytes, tag.PausedBytes),
				tag.WithoutContents-min(was.WithoutContents, tag.WithoutContents), tag.LastPauseSeconds)
		}
		if resumed {
			add("resumed", d, tag.Tag, was.PausedBytes-min(was.PausedBytes, tag.PausedBytes), 0, tag.LastResumeSeconds)
		}
	}
	for _, pause := range now.PausedBy {
		if !slices.ContainsFunc(before.PausedBy, func(was control.LastingPause) bool {
			return was.Since == pause.Since && was.PID == pause.PID
		}) {
			found = append(found, event{at: at, pid: now.PID, whose: fleet.Whose(now.PID, pause, at)})
		}
	}
	for _, d := range now.Stats.Devices {
		i := slices.IndexFunc(before.Stats.Devices, func(was stats.Device) bool { return was.Device == d.Device })
		if i >= 0 && d.LimitRefused > before.Stats.Devices[i].LimitRefused {
			found = append(found, event{at: at, pid: now.PID, on: []string{fleet.Name(d.GPU, "", d.Device)},
				bytes: d.LimitBytes, refused: d.LimitRefused - before.Stats.Devices[i].LimitRefused})
		}
	}
	return found
}

// tagOf returns a tag of a process, and whether the process has it.
func tagOf(p *fleet.Process, device int, name string) (stats.Tag, bool) {
	for d, tag := range p.Tags() {
		if d.Device == device && tag.Tag == name {
			return tag, true
		}
	}
	return stats.Tag{}, false
}

func (e event) String() string {
	if e.whose != "" {
		return fmt.Sprintf("%s %7d %s", e.at.Format(time.TimeOnly), e.pid, e.whose)
	}
	if e.refused > 0 {
		return fmt.Sprintf("%s %7d allocations refused by its limit of %s on %s: %d", e.at.Format(time.TimeOnly), e.pid,
			readable.Short(e.bytes), e.on[0], e.refused)
	}
	text := fmt.Sprintf("%s %7d %s %s", e.at.Format(time.TimeOnly), e.pid, e.what,
		readable.Printable(strings.Join(e.tags, ", ")))
	if len(e.on) > 0 {
		text += " on GPU " + strings.Join(e.on, ", ")
	}
	if e.bytes > 0 {
		text += ": " + readable.Short(e.bytes)
	}
	text += " in " + seconds(e.seconds)
	if e.unkept > 0 {
		text += ", " + readable.Short(e.unkept) + " without contents"
	}
	if e.bytes > 0 && e.seconds > 0 {
		text += fmt.Sprintf(", %.1f GB/s", float64(e.bytes)/e.seconds/1e9)
	}
	return text
}

// seconds returns a time with enough digits for a millisecond.
func seconds(s float64) string {
	if s < 0.1 {
		return fmt.Sprintf("%.4f s", s)
	}
	return fmt.Sprintf("%.2f s", s)
}
