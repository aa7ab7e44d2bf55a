package replay

import (
	"errors"
	"math"
	"runtime"
	"time"

	"tms/internal/report/trace"
	"tms/vmm/pool"
)

// Passes repeat for this time, at least once, and the fastest counts: other work of the machine only adds time.
const measuring = 200 * time.Millisecond

// measureTime fills in the time of an operation in passes that do nothing else.
func measureTime(t *trace.Trace, o Options, result *Result) error {
	if len(t.Events) == 0 {
		return nil
	}
	at := make([]uintptr, t.Blocks+1)
	first, err := fastest(func() (time.Duration, error) {
		p, err := o.pool(newMeter(o.Limit).source())
		if err != nil {
			return 0, err
		}
		return timed(p, t, at), p.Destroy()
	})
	if err != nil {
		return err
	}
	p, err := o.pool(newMeter(o.Limit).source())
	if err != nil {
		return err
	}
	timed(p, t, at)
	again, err := fastest(func() (time.Duration, error) { return timed(p, t, at), nil })
	result.First = float64(first.Nanoseconds()) / float64(len(t.Events))
	result.Again = float64(again.Nanoseconds()) / float64(len(t.Events))
	return errors.Join(err, p.Destroy())
}

func fastest(pass func() (time.Duration, error)) (time.Duration, error) {
	best := time.Duration(math.MaxInt64)
	for begin := time.Now(); ; {
		took, err := pass()
		if err != nil {
			return 0, err
		}
		if best = min(best, took); time.Since(begin) > measuring {
			return best, nil
		}
	}
}

// timed plays a trace and then, off the clock, frees what it left.
func timed(p pool.Pool, t *trace.Trace, at []uintptr) time.Duration {
	runtime.GC() // earlier passes' garbage must not count for this one
	begin := time.Now()
	play(p, t.Events, at)
	took := time.Since(begin)
	for i, address := range at {
		_ = p.Free(address)
		at[i] = 0
	}
	return took
}

// play does the operations; observe looks at their errors.
func play(p pool.Pool, events []trace.Event, at []uintptr) {
	for i := range events {
		switch e := &events[i]; e.Action {
		case trace.Free:
			_ = p.Free(at[e.Block])
			at[e.Block] = 0
		case trace.Allocate:
			b, _ := p.Malloc(e.Size, pool.Stream(e.Stream))
			at[e.Block] = b.Address
		case trace.Failure:
			b, _ := p.Malloc(e.Size, pool.Stream(e.Stream))
			_ = p.Free(b.Address)
		}
	}
}

// measureMetadata returns by how much the Go heap grows while the pool does the operations up to the peak.
func measureMetadata(t *trace.Trace, o Options, peak int) (uint64, error) {
	at := make([]uintptr, t.Blocks+1)
	meter := &meter{Source: &pool.Endless{}, limit: o.Limit} // a source without metadata of its own
	before := heap()
	p, err := o.pool(meter.source())
	if err != nil {
		return 0, err
	}
	play(p, t.Events[:peak+1], at)
	after := heap()
	runtime.KeepAlive(p)
	runtime.KeepAlive(at)
	return max(after, before) - before, nil
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // collects what the first only swept
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
