package replay

import (
	"tms/internal/report/trace"
	"tms/vmm/pool"
)

// Lifetime is the operations of a trace, counted from 0, between which a pool had a segment or a block.
type Lifetime struct {
	From int  `json:"from"`
	To   *int `json:"to"` // nil if the pool has it at the end of the trace
}

// PlacedSegment is memory that a pool took from its source.
type PlacedSegment struct {
	Trace   string `json:"trace"`
	Kind    string `json:"kind"`
	Segment int    `json:"segment"` // its number, from 0 on
	Bytes   uint64 `json:"bytes"`
	Lifetime
	address uintptr
}

// PlacedBlock is where a pool placed a block of the trace.
type PlacedBlock struct {
	Trace     string `json:"trace"`
	Kind      string `json:"kind"`
	Block     int    `json:"block"`   // the number of its allocation in the trace, from 0 on
	Segment   int    `json:"segment"` // in which it lies
	Offset    uint64 `json:"offset"`  // from the start of the segment, in bytes
	Bytes     uint64 `json:"bytes"`   // set aside for it
	Requested uint64 `json:"requested_bytes"`
	Stream    uint64 `json:"stream"`
	Lifetime
	address uintptr
}

// placements follows the segments of a pool.
type placements struct {
	trace, kind string
	operation   int // that is being replayed
	segments    []*PlacedSegment
	directory   pool.Directory[*PlacedSegment]
	emit        func(any) error
	err         error // the first of emit
}

// Place replays a trace once. It hands each PlacedSegment and PlacedBlock to emit when its lifetime ends, and those
// that the trace leaves at the end. What the pool refuses has no place. Errors: pool.ErrOption, those of emit.
func Place(t *trace.Trace, o Options, emit func(any) error) error {
	s := &placements{trace: t.Name, kind: o.Kind, emit: emit}
	meter := newMeter(o.Limit)
	meter.placements = s
	p, err := o.pool(meter.source())
	if err != nil {
		return err
	}
	live := make([]*PlacedBlock, t.Blocks+1) // by the trace's number of the block
	allocations := 0
	for i := range t.Events {
		e := &t.Events[i]
		s.operation = i
		if e.Action != trace.Free {
			live[e.Block] = s.malloc(p, e, allocations)
			allocations++
		}
		if b := live[e.Block]; e.Action != trace.Allocate && b != nil && p.Free(b.address) == nil {
			live[e.Block] = nil
			s.end(&b.Lifetime, b)
		}
		if s.err != nil {
			return s.err
		}
	}
	for _, b := range live {
		if b != nil {
			s.write(b)
		}
	}
	for _, segment := range s.segments {
		if segment.To == nil {
			s.write(segment)
		}
	}
	return s.err
}

// malloc makes a block, or returns nil if the pool refuses it.
func (s *placements) malloc(p pool.Pool, e *trace.Event, number int) *PlacedBlock {
	made, err := p.Malloc(e.Size, pool.Stream(e.Stream))
	if err != nil || made.Address == 0 {
		return nil
	}
	segment, _ := s.directory.Find(made.Address)
	return &PlacedBlock{Trace: s.trace, Kind: s.kind, Block: number, Segment: segment.Segment,
		Offset: uint64(made.Address - segment.address), Bytes: made.Size, Requested: e.Size, Stream: e.Stream,
		Lifetime: Lifetime{From: s.operation}, address: made.Address}
}

// allocated notes a new segment; placements may be nil.
func (s *placements) allocated(address uintptr, size uint64) {
	if s == nil {
		return
	}
	made := &PlacedSegment{Trace: s.trace, Kind: s.kind, Segment: len(s.segments), Bytes: size,
		Lifetime: Lifetime{From: s.operation}, address: address}
	s.segments = append(s.segments, made)
	s.directory.Enter(address, size, made)
}

// freed notes the end of a segment; placements may be nil.
func (s *placements) freed(address uintptr) {
	if s == nil {
		return
	}
	if segment, found := s.directory.Find(address); found {
		s.directory.Remove(address)
		s.end(&segment.Lifetime, segment)
	}
}

// end writes what the current operation ends.
func (s *placements) end(l *Lifetime, placed any) {
	l.To = new(s.operation)
	s.write(placed)
}

func (s *placements) write(placed any) {
	if s.err == nil {
		s.err = s.emit(placed)
	}
}
