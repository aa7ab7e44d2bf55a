package fleet

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
)

// Whose says who paused a process, since when and until when, and what ends the pause.
func Whose(pid int, pause control.LastingPause, now time.Time) string {
	since := time.UnixMicro(int64(pause.Since * 1e6))
	by := fmt.Sprintf("by %s (process %d) since %s", readable.Printable(pause.User), pause.PID, Moment(since, now))
	if tags := strings.Join(pause.Tags, ", "); tags != "" {
		by += ": " + readable.Printable(tags)
	}
	if pause.Awaits > 0 {
		return fmt.Sprintf("paused %s; it was restored from that snapshot, and its tms restore has to give it contents (files: %d). "+
			"If that command has ended, end the process and restore it again", by, pause.Awaits)
	}
	if pause.Until == 0 {
		return fmt.Sprintf("paused %s; tms resume %d continues it", by, pid)
	}
	lent := "lent to " + readable.Printable(cmp.Or(pause.To, "others")) + " until " + Moment(pause.End(), now)
	if now.After(pause.End()) {
		return fmt.Sprintf("%s, %s; it resumes as soon as there is room (tms ps --bytes)", lent, by)
	}
	return fmt.Sprintf("%s, %s; tms resume %d takes the memory back", lent, by, pid)
}

// Moment writes a time of the clock on the wall, with the date unless it is within a day.
func Moment(at, now time.Time) string {
	if distance := at.Sub(now); distance > 20*time.Hour || distance < -20*time.Hour {
		return at.Format("2006-01-02 15:04")
	}
	return at.Format("15:04:05")
}
