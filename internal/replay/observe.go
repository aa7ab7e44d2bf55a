package replay

import (
	"tms/internal/trace"
	"tms/vmm/pool"
)

// Event is what became of one operation.
type Event struct {
	Index    int     `json:"index"` // from 0
	Action   string  `json:"action"`
	Size     uint64  `json:"size"`    // bytes asked for
	Address  *uint64 `json:"address"` // of the block made or freed, in sim counted from the first; nil: none
	Block    uint64  `json:"block"`   // bytes set aside for it
	Reserved uint64  `json:"reserved"`
	Error    *string `json:"error"` // nil: none
}

// observer follows the pool operation by operation.
type observer struct {
	result    *Result
	base      uintptr
	at        []observed // by the trace's number of the block
	requested uint64     // bytes live, as asked for
	live      uint64     // bytes live, as set aside
	meter     *meter
	timeline  *Timeline // nil: not wanted
	snapshot  *Snapshot // nil: not wanted

	peakLive     uint64
	peak         int // the operation at which live reached it
	peakReserved uint64
}

// observed is a live block; size 0 is none.
type observed struct {
	pool.Block
	requested uint64
	since     int
}

// observe fills in what does not need a clock, and returns the operation at which most was live.
func observe(t *trace.Trace, o Options, result *Result) (peak int, err error) {
	meter := o.Place.fresh()
	ob := &observer{result: result, base: o.Place.base, at: make([]observed, t.Blocks+1), meter: meter, peak: -1}
	if o.Timeline {
		ob.timeline = &Timeline{}
		meter.changed = append(meter.changed, ob.timeline.segment)
	}
	if o.Snapshot {
		ob.snapshot = newSnapshot()
		meter.changed = append(meter.changed, ob.snapshot.segment)
		result.Snapshot = ob.snapshot
	}
	p, err := o.pool(meter.source())
	if err != nil {
		return 0, err
	}
	defer func() {
		if destroyed := p.Destroy(); err == nil {
			err = destroyed
		}
	}()
	for i, e := range t.Events {
		event := ob.step(p, i, e)
		if o.Each != nil {
			if err := o.Each(event); err != nil {
				return 0, err
			}
		}
	}
	ob.finish(p, len(t.Events))
	return ob.peak, nil
}

func (ob *observer) step(p pool.Pool, i int, e trace.Event) Event {
	event := Event{Index: i, Action: e.Action.String(), Size: e.Size}
	var block pool.Block
	var err error
	if _, ordered := p.(pool.StreamRecorder); ordered && ob.snapshot != nil {
		ob.snapshot.stream = pool.Stream(e.Stream)
	}
	switch e.Action {
	case trace.Free:
		b := &ob.at[e.Block]
		if block = b.Block; block.Address == 0 {
			break // it was refused
		}
		if ob.snapshot != nil {
			ob.snapshot.free(block.Address) // before its segment may go
		}
		if err = p.Free(block.Address); err != nil {
			ob.result.FreeFailures++
			if ob.snapshot != nil {
				ob.snapshot.alloc(block, b.requested, pool.Stream(e.Stream))
			}
			break
		}
		ob.end(*b, i)
		*b = observed{}
	case trace.Allocate:
		if block, err = p.Malloc(e.Size, pool.Stream(e.Stream)); err == nil && block.Address != 0 {
			ob.at[e.Block] = observed{block, e.Size, i}
			ob.begin(ob.at[e.Block], i)
			if ob.snapshot != nil {
				ob.snapshot.alloc(block, e.Size, pool.Stream(e.Stream))
			}
		}
	case trace.Failure:
		if block, err = p.Malloc(e.Size, pool.Stream(e.Stream)); err == nil && block.Address != 0 {
			b := observed{block, e.Size, i}
			ob.begin(b, i)
			if err = p.Free(block.Address); err == nil {
				ob.end(b, i)
			}
		}
	}
	if block.Address != 0 {
		offset := uint64(block.Address - ob.base)
		event.Address, event.Block = &offset, block.Size
	}
	event.Reserved = ob.meter.reserved
	if err != nil {
		text := err.Error()
		event.Error = &text
		if ob.snapshot != nil && e.Action != trace.Free {
			ob.snapshot.oom(e.Size, pool.Stream(e.Stream), ob.meter.left())
		}
		if ob.timeline != nil && e.Action != trace.Free {
			ob.timeline.failed = append(ob.timeline.failed, [2]uint64{uint64(i), e.Size})
		}
	}
	ob.sample()
	return event
}

func (ob *observer) begin(b observed, i int) {
	ob.requested += b.requested
	ob.live += b.Size
	if ob.live > ob.peakLive {
		ob.peakLive, ob.peak = ob.live, i
		ob.result.Internal = share(ob.live-ob.requested, ob.live)
	}
}

func (ob *observer) end(b observed, i int) {
	ob.requested -= b.requested
	ob.live -= b.Size
	if ob.timeline != nil {
		ob.timeline.block(b, i)
	}
}

// sample looks at the state after an operation. Reserved mostly stays at its peak for long; what counts is
// how much of it came to be used, so of the operations there the one with most live.
func (ob *observer) sample() {
	reserved := ob.meter.reserved
	if reserved > ob.peakReserved {
		ob.peakReserved = reserved
		ob.result.External = 1
	}
	if reserved == ob.peakReserved {
		ob.result.External = min(ob.result.External, share(reserved-ob.live, reserved))
	}
	if ob.timeline != nil {
		ob.timeline.sample(ob.requested, ob.live, reserved)
	}
}

func (ob *observer) finish(p pool.Pool, operations int) {
	ob.meter.changed = nil // what follows is not of the trace
	if ob.snapshot != nil {
		ob.snapshot.end(p)
	}
	if ob.timeline != nil {
		for _, b := range ob.at {
			if b.Size > 0 {
				ob.timeline.block(b, operations)
			}
		}
		ob.timeline.close(ob.base)
	}
	r := ob.result
	r.Timeline = ob.timeline
	r.Stats = p.Stats()
	r.SourceCalls = int(r.SourceMallocs + r.SourceFrees + r.SourceFailures)
	if r.PeakLive > 0 {
		r.ReservedPerLive = float64(r.PeakReserved) / float64(r.PeakLive)
	}
}

func share(part, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}
