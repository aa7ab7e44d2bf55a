package vmm

import (
	"sync/atomic"

	"tms/vmm/stats"
)

// progress is how far a transition has come with the contents of a device, while it runs.
type progress struct {
	operation   string
	done, total atomic.Uint64
}

func (d *device) readProgress() *stats.Progress {
	p := d.progress.Load()
	if p == nil {
		return nil
	}
	return &stats.Progress{Device: d.ordinal, Operation: p.operation, Done: p.done.Load(), Total: p.total.Load()}
}
