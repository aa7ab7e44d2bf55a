package vmm

import (
	"time"

	"tms/vmm/backup"
)

// awaitTime is how long, at least, an operation may wait for what it has discarded; see discarded.await.
const awaitTime = 20 * time.Millisecond

// discarded is what an operation has given up of the contents of segments. Clients measure their memory
// when it returns, and expect what is not kept to be back with the system.
type discarded struct {
	start    time.Time // of the operation, or of its first discarding
	contents []backup.Contents
	prompt   []bool // it is of a segment that wants it back in any case
}

func (d *discarded) add(s *segment) {
	if d.start.IsZero() {
		d.start = time.Now()
	}
	d.contents, d.prompt = append(d.contents, s.contents), append(d.prompt, s.prompt)
}

// await waits, with no lock held, until what was discarded is back: what is prompt however long that
// takes, the rest no longer than a tenth of the operation's time, or awaitTime; it then goes on in the
// background.
func (d *discarded) await(spent *spent) {
	if len(d.contents) == 0 {
		return
	}
	now := time.Now()
	defer func() { spent.waited += time.Since(now) }()
	until := now.Add(max(awaitTime, now.Sub(d.start)/10))
	for i, contents := range d.contents {
		if d.prompt[i] {
			contents.Await(time.Time{})
		} else {
			contents.Await(until)
		}
	}
}
