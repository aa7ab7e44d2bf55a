package store

import "time"

// awaitTime is the least time that an operation may wait for what it has discarded; see Discarded.Await.
const awaitTime = 20 * time.Millisecond

// Discarded has the contents that an operation gives up. Clients measure memory when the operation returns, and expect
// the system to have back the memory of contents that are not saved any longer.
type Discarded struct {
	Start    time.Time // of the operation, or of its first discarding
	Later    bool      // others wait for the operation, so it waits for nothing that need not be prompt
	contents []Contents
	prompt   []bool // they are waited for however long it takes
}

// Add notes contents that are given up.
func (d *Discarded) Add(contents Contents, prompt bool) {
	if d.Start.IsZero() {
		d.Start = time.Now()
	}
	d.contents, d.prompt = append(d.contents, contents), append(d.prompt, prompt)
}

// Await waits until the system has back what was discarded: for prompt contents however long that takes, for others a
// tenth of the operation's time but at least awaitTime. What is left is given back in the background. Await returns how
// long it has waited. The caller holds no lock.
func (d *Discarded) Await() (waited time.Duration) {
	if len(d.contents) == 0 {
		return 0
	}
	now := time.Now()
	until := now.Add(max(awaitTime, now.Sub(d.Start)/10))
	if d.Later {
		until = now
	}
	for i, contents := range d.contents {
		if d.prompt[i] {
			contents.Await(time.Time{})
		} else {
			contents.Await(until)
		}
	}
	return time.Since(now)
}
