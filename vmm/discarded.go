package vmm

import (
	"time"

	"tms/vmm/store"
)

// awaitTime is the least time that an operation may wait for what it has discarded; see discarded.await.
const awaitTime = 20 * time.Millisecond

// discarded has the contents of segments that an operation gives up. Clients measure memory when the operation returns,
// and expect the system to have back the memory of contents that are not kept.
type discarded struct {
	start    time.Time // of the operation, or of its first discarding
	contents []store.Contents
	prompt   []bool // its segment waits for that however long it takes
}

func (d *discarded) add(contents store.Contents, prompt bool) {
	if d.start.IsZero() {
		d.start = time.Now()
	}
	d.contents, d.prompt = append(d.contents, contents), append(d.prompt, prompt)
}

// await waits, with no lock held, until the system has back what was discarded: for prompt segments however long that
// takes, for others a tenth of the operation's time but at least awaitTime. What is left is given back in the
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
