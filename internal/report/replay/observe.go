package replay

import (
	"tms/internal/report/trace"
	"tms/vmm/pool"
)

// observer follows the pool operation by operation.
type observer struct {
	result    *Result
	at        []observed // by the trace's number of the block
	requested uint64     // bytes live, as asked for
	live      uint64     // bytes live, as set aside
	meter     *meter

	peakLive     uint64
	peak         int // the operation at which live reached it
	peakReserved uint64
}

// observed is a live block; size 0 is none.
type observed struct {
	pool.Block
	requested uint64
}

// observe fills in everything that needs no clock, and returns the operation at which most was live.
func observe(t *trace.Trace, o Options, result *Result) (peak int, err error) {
	ob := &observer{result: result, at: make([]observed, t.Blocks+1), meter: newMeter(o.Limit), peak: -1}
	p, err := o.pool(ob.meter.source())
	if err != nil {
		return 0, err
	}
	for i, e := range t.Events {
		ob.step(p, i, e)
		ob.sample()
	}
	result.Stats = p.Stats()
	result.SourceCalls = int(result.SourceMallocs + result.SourceFrees + result.SourceFailures)
	if result.PeakLive > 0 {
		result.ReservedPerLive = float64(result.PeakReserved) / float64(result.PeakLive)
	}
	return ob.peak, p.Destroy()
}

func (ob *observer) step(p pool.Pool, i int, e trace.Event) {
	if e.Action == trace.Free {
		if b := ob.at[e.Block]; b.Address != 0 && ob.free(p, b) { // else it was refused
			ob.at[e.Block] = observed{}
		}
		return
	}
	made, err := p.Malloc(e.Size, pool.Stream(e.Stream))
	if err != nil || made.Address == 0 {
		return
	}
	b := observed{made, e.Size}
	ob.requested += b.requested
	ob.live += b.Size
	if ob.live > ob.peakLive {
		ob.peakLive, ob.peak = ob.live, i
		ob.result.Internal = share(ob.live-ob.requested, ob.live)
	}
	if e.Action == trace.Allocate {
		ob.at[e.Block] = b
	} else {
		ob.free(p, b)
	}
}

func (ob *observer) free(p pool.Pool, b observed) bool {
	if err := p.Free(b.Address); err != nil {
		ob.result.FreeFailures++
		return false
	}
	ob.requested -= b.requested
	ob.live -= b.Size
	return true
}

// sample looks at the state after an operation. Reserved mostly stays at its peak for long. Of the operations there,
// the one with most live counts: it shows how much of reserved came to be used.
func (ob *observer) sample() {
	reserved := ob.meter.reserved
	if reserved > ob.peakReserved {
		ob.peakReserved = reserved
		ob.result.External = 1
	}
	if reserved == ob.peakReserved {
		ob.result.External = min(ob.result.External, share(reserved-ob.live, reserved))
	}
}

func share(part, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}
