package vmm

import (
	"sync"
	"sync/atomic"
	"time"

	"tms/internal/guard"
	"tms/vmm/stats"
)

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

// reportEvery is short enough for a bar that moves.
const reportEvery = 50 * time.Millisecond

// track counts what an operation copies, per device, and calls report with it now and then, from one thread. end stops
// that, after a last call for every device with contents.
//
// A report may wait for a lock that the host holds while it waits for the operation's segments, or for its turn
// (Python's, in a callback). So reports do not come from a thread that copies, and the caller calls end when the
// segments have settled and no lock of ours is held.
func track(batches []*batch, operation string, report func(stats.Progress)) (end func()) {
	for _, b := range batches {
		b.progress.operation = operation
		b.device.progress.Store(b.progress)
	}
	all := func() {
		for _, b := range batches {
			if p := b.device.readProgress(); p != nil && p.Total > 0 {
				report(*p)
			}
		}
	}
	var reporter sync.WaitGroup
	ended := make(chan struct{})
	if report != nil {
		reporter.Go(func() {
			_ = guard.Call(func() error {
				ticks := time.NewTicker(reportEvery)
				defer ticks.Stop()
				for {
					select {
					case <-ticks.C:
						all()
					case <-ended:
						all()
						return nil
					}
				}
			})
		})
	}
	return func() {
		close(ended)
		reporter.Wait()
		for _, b := range batches {
			b.device.progress.CompareAndSwap(b.progress, nil) // the next may have begun
		}
	}
}
