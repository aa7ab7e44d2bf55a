// Package report makes of recordings (internal/trace) what people look at: a page, or a trace for Perfetto. It holds
// each change of a recording while it does, some 24 bytes, and writes what a screen can show.
package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"tms/internal/trace"
)

// Metrics of a series.
const (
	physical = iota // device memory held
	live            // as the program asked for it, active and paused
	backup          // contents in host memory, files and with peers
	metrics
)

var metricNames = [metrics]string{"physical", "live", "backup"}

// series is a tag on a device, or what of a device is not pausable.
type series struct {
	Device int    `json:"device"` // -1: not known
	Tag    string `json:"tag"`
	Plain  bool   `json:"plain,omitempty"`  // not pausable
	Others int    `json:"others,omitempty"` // it stands for so many

	allocated uint64 // by blocks
	other     uint64 // the engine's figure beyond that: what the program maps itself, what pools hold
	value     [metrics]uint64
	sampled   uint64 // nanoseconds: when other was found
	peak      uint64 // of any metric
}

// step is a change of one series.
type step struct {
	at     int64 // nanoseconds since 1970
	series int
	metric int
	value  uint64
}

// block is an allocation.
type block struct {
	address, size uint64
	from, to      int64 // to: math.MaxInt64, if it was not freed
	series        int
	thread        uint32
	earlier       bool
}

// operation is a pause, resume or move.
type operation struct {
	kind                  trace.Operation
	tag                   string // "": all
	from                  int64
	took, waited, copying time.Duration
	bytes, copied         uint64
	code                  int
	over                  bool // else the recording ends before
}

// process is one recording.
type process struct {
	name, command string
	pid           int
	from, to      int64
	records       int
	series        []*series
	steps         []step
	blocks        []block
	operations    []operation
	peak          [metrics]uint64 // of the sum
}

type reader struct {
	p       *process
	records *trace.Records
	known   map[series]int // by Device, Tag and Plain
	open    map[uint64]int // of blocks, by address
	begun   map[uint32]int // of operations, by number
}

// Read reads a recording. Errors: trace.ErrMalformed, or the operating system's.
func read(path string) (*process, error) {
	records, file, err := trace.OpenRecords(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := reader{p: &process{name: path, pid: records.PID, from: math.MaxInt64}, records: records, known: map[series]int{},
		open: map[uint64]int{}, begun: map[uint32]int{}}
	alive := trace.NewLive()
	for {
		record, ok, err := records.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		at := records.At(record).UnixNano()
		r.p.records++
		r.p.from, r.p.to = min(r.p.from, at), max(r.p.to, at)
		switch record.Kind {
		case trace.Begin:
			r.begin(record, at)
		case trace.End:
			r.end(record, at)
		case trace.Figures:
			r.figures(record, at)
		default:
			alive.Apply(record, func(b trace.Record) { r.made(b, at) }, func(b trace.Record, _ uint64) { r.freed(b, at) })
		}
	}
	if r.p.records == 0 {
		return nil, fmt.Errorf("%s: nothing is recorded in it", path)
	}
	r.p.command = records.Command
	for i := range r.p.operations {
		if o := &r.p.operations[i]; !o.over {
			o.took = time.Duration(r.p.to - o.from)
		}
	}
	r.peaks()
	return r.p, nil
}

func (r *reader) series(device int, tag string, plain bool) int {
	key := series{Device: device, Tag: tag, Plain: plain}
	i, ok := r.known[key]
	if !ok {
		i = len(r.p.series)
		r.known[key] = i
		r.p.series = append(r.p.series, &key)
	}
	return i
}

func (r *reader) set(at int64, i, metric int, value uint64) {
	s := r.p.series[i]
	if s.value[metric] == value {
		return
	}
	s.value[metric] = value
	s.peak = max(s.peak, value)
	r.p.steps = append(r.p.steps, step{at, i, metric, value})
}

// made is of a block. A pool's blocks are in memory that is counted where the pool took it.
func (r *reader) made(b trace.Record, at int64) {
	pausable := b.Flags&trace.FlagPausable != 0
	i := r.series(int(b.Device), r.records.TagName(b), !pausable)
	if b.Flags&trace.FlagBlock != 0 {
		return
	}
	s := r.p.series[i]
	r.open[b.Address] = len(r.p.blocks)
	r.p.blocks = append(r.p.blocks, block{b.Address, b.Size, at, math.MaxInt64, i, b.Thread, b.Flags&trace.FlagEarlier != 0})
	if s.other >= b.Size && b.Time-s.sampled < uint64(time.Millisecond) {
		s.other -= b.Size // another thread's, which the figures had already
	}
	s.allocated += b.Size
	r.set(at, i, live, s.allocated+s.other)
	r.set(at, i, physical, s.value[physical]+b.Size)
}

func (r *reader) freed(b trace.Record, at int64) {
	n, ok := r.open[b.Address]
	if !ok {
		return
	}
	delete(r.open, b.Address)
	freed := &r.p.blocks[n]
	freed.to = at
	s := r.p.series[freed.series]
	s.allocated -= freed.size
	r.set(at, freed.series, live, s.allocated+s.other)
	r.set(at, freed.series, physical, s.value[physical]-min(s.value[physical], freed.size)) // 0: it is paused
}

// figures are the engine's own.
func (r *reader) figures(record trace.Record, at int64) {
	i := r.series(int(record.Device), r.records.TagName(record), false)
	s := r.p.series[i]
	s.other, s.sampled = record.Address-min(record.Address, s.allocated), record.Time
	r.set(at, i, live, s.allocated+s.other)
	r.set(at, i, physical, record.Size)
	r.set(at, i, backup, record.Stream+record.Pool+record.Other)
}

func (r *reader) begin(record trace.Record, at int64) {
	r.begun[record.Thread] = len(r.p.operations)
	r.p.operations = append(r.p.operations, operation{kind: trace.Operation(record.Flags), tag: r.records.TagName(record), from: at})
}

func (r *reader) end(record trace.Record, at int64) {
	n, ok := r.begun[record.Thread]
	if !ok { // it began before the recording
		n = len(r.p.operations)
		r.p.operations = append(r.p.operations, operation{kind: trace.Operation(record.Flags), tag: r.records.TagName(record)})
	}
	delete(r.begun, record.Thread)
	o := &r.p.operations[n]
	o.over, o.code = true, int(record.Device)
	o.took, o.waited, o.copying = time.Duration(record.Address), time.Duration(record.Pool), time.Duration(record.Other)
	o.bytes, o.copied = record.Size, record.Stream
	o.from = at - int64(o.took) // with what was waited before it began
	r.p.from = min(r.p.from, o.from)
}

// peaks are of the sum of all series.
func (r *reader) peaks() {
	var sum [metrics]uint64
	now := make([][metrics]uint64, len(r.p.series))
	for _, s := range r.p.steps {
		sum[s.metric] += s.value - now[s.series][s.metric]
		now[s.series][s.metric] = s.value
		r.p.peak[s.metric] = max(r.p.peak[s.metric], sum[s.metric])
	}
}

// mostSeries is how many of a process are told apart.
const mostSeries = 12

// merge leaves the largest series, and one for the others.
func (p *process) merge() {
	if len(p.series) <= mostSeries {
		return
	}
	order := make([]int, len(p.series))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(p.series[y].peak, p.series[x].peak) })
	place := make([]int, len(p.series))
	kept := make([]*series, 0, mostSeries)
	for rank, i := range order {
		place[i] = min(rank, mostSeries-1)
		if rank < mostSeries-1 {
			kept = append(kept, p.series[i])
		}
	}
	others := &series{Device: -1, Others: len(p.series) - len(kept)}
	kept = append(kept, others)
	now := make([][metrics]uint64, len(p.series))
	for n := range p.steps {
		s := &p.steps[n]
		i := s.series
		s.series = place[i]
		if s.series == mostSeries-1 {
			others.value[s.metric] += s.value - now[i][s.metric]
			now[i][s.metric] = s.value
			s.value = others.value[s.metric]
		}
	}
	for n := range p.blocks {
		p.blocks[n].series = place[p.blocks[n].series]
	}
	p.series = kept
}
