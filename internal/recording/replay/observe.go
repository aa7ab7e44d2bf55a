package replay

import (
	"errors"

	"tms/internal/recording/trace"
	"tms/vmm/pool"
)

// Event is the outcome of one operation.
type Event struct {
	Index    int     `json:"index"` // from 0
	Action   string  `json:"action"`
	Size     uint64  `json:"size"`    // bytes asked for
	Address  *uint64 `json:"address"` // of the block made or freed, in sim from the first one on; nil: none
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
	snapshot  *Snapshot // nil: not wanted

	peakLive     uint64
	peak         int // the operation at which live reached it
	peakReserved uint64
}

// observed is a live block; size 0 is none.
type observed struct {
	pool.Block
	requested uint64
	stream    pool.Stream
}

// observe fills in everything that needs no clock, and returns the operation at which most was live.
func observe(t *trace.Trace, o Options, result *Result) (peak int, err error) {
	meter := o.Place.fresh()
	ob := &observer{result: result, base: o.Place.base, at: make([]observed, t.Blocks+1), meter: meter, peak: -1}
	if o.Snapshot {
		ob.snapshot = &Snapshot{segments: map[uintptr]heldSegment{}}
		meter.changed = ob.snapshot.segment
		result.Snapshot = ob.snapshot
	}
	p, err := o.pool(meter.source())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Destroy()) }()
	for i, e := range t.Events {
		event := ob.step(p, i, e)
		if o.Each != nil {
			if err := o.Each(event); err != nil {
				return 0, err
			}
		}
	}
	ob.finish(p)
	return ob.peak, nil
}

func (ob *observer) step(p pool.Pool, i int, e trace.Event) Event {
	event := Event{Index: i, Action: e.Action.String(), Size: e.Size}
	b := observed{requested: e.Size, stream: pool.Stream(e.Stream)}
	var err error
	if e.Action == trace.Free {
		if b = ob.at[e.Block]; b.Address != 0 { // else it was refused
			err = ob.free(p, e.Block)
		}
	} else {
		if _, ordered := p.(pool.StreamRecorder); ordered && ob.snapshot != nil {
			ob.snapshot.stream = b.stream
		}
		if b.Block, err = p.Malloc(e.Size, b.stream); err != nil {
			ob.snapshot.note("oom", 0, e.Size, b.stream, ob.meter.left())
		} else if b.Address != 0 {
			ob.begin(b, i)
			if e.Action == trace.Allocate {
				ob.at[e.Block] = b
				ob.snapshot.note("alloc", b.Address, b.requested, b.stream, 0)
			} else if err = p.Free(b.Address); err == nil {
				ob.end(b)
			}
		}
	}
	if b.Address != 0 {
		event.Address, event.Block = new(uint64(b.Address-ob.base)), b.Size
	}
	event.Reserved = ob.meter.reserved
	if err != nil {
		event.Error = new(err.Error())
	}
	ob.sample()
	return event
}

func (ob *observer) free(p pool.Pool, number uint32) error {
	b := ob.at[number]
	for _, action := range []string{"free_requested", "free_completed"} { // before its segment can go
		ob.snapshot.note(action, b.Address, b.requested, b.stream, 0)
	}
	if err := p.Free(b.Address); err != nil {
		ob.result.FreeFailures++
		ob.snapshot.note("alloc", b.Address, b.requested, b.stream, 0)
		return err
	}
	ob.end(b)
	ob.at[number] = observed{}
	return nil
}

func (ob *observer) begin(b observed, i int) {
	ob.requested += b.requested
	ob.live += b.Size
	if ob.live > ob.peakLive {
		ob.peakLive, ob.peak = ob.live, i
		ob.result.Internal = share(ob.live-ob.requested, ob.live)
	}
}

func (ob *observer) end(b observed) {
	ob.requested -= b.requested
	ob.live -= b.Size
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

func (ob *observer) finish(p pool.Pool) {
	ob.meter.changed = nil // the trace ends here
	if ob.snapshot != nil {
		ob.snapshot.end(p, ob.at)
	}
	r := ob.result
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
