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
func Whose(pid int, kept control.KeptPause, now time.Time) string {
	since := time.UnixMicro(int64(kept.Since * 1e6))
	by := fmt.Sprintf("by %s (process %d) since %s", readable.Printable(kept.User), kept.PID, Moment(since, now))
	if tags := strings.Join(kept.Tags, ", "); tags != "" {
		by += ": " + readable.Printable(tags)
	}
	if kept.Awaits > 0 {
		return fmt.Sprintf("paused %s; it was restored from that snapshot, and its tms restore has to give it contents (files: %d). "+
			"If that command has ended, end the process and restore it again", by, kept.Awaits)
	}
	if kept.Until == 0 {
		return fmt.Sprintf("paused %s; tms resume %d continues it", by, pid)
	}
	lent := "lent to " + readable.Printable(cmp.Or(kept.To, "others")) + " until " + Moment(kept.End(), now)
	if now.After(kept.End()) {
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
