// Package report makes recordings (internal/report/trace) readable: as a page, or a trace for Perfetto. It holds
// each change of a recording in memory, some 24 bytes, and writes as much as a screen can show.
package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"tms/internal/report/trace"
)

// Metrics of a series.
const (
	physical = iota // device memory held
	live            // as the program asked for it, active and paused
	backup          // contents in host memory, files and peers
	metrics
)

var metricNames = [metrics]string{"physical", "live", "backup"}

// origin is a tag on a device, or a device's memory that is not pausable.
type origin struct {
	device int // -1: not known
	tag    string
	plain  bool // not pausable
}

// series is the memory of one origin, or of many.
type series struct {
	Label string `json:"label"`
	Plain bool   `json:"plain"`
	Peak  uint64 `json:"peak"` // over all metrics

	allocated uint64 // in blocks
	other     uint64 // the engine's figure beyond that: what the program maps itself, what pools hold
	value     [metrics]uint64
	sampled   uint64 // nanoseconds: when other was computed
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

// operation is a pause, resume, move, or a wait for memory that others have.
type operation struct {
	Kind   string `json:"kind"`
	Tag    string `json:"tag"` // "": all
	Bytes  uint64 `json:"bytes"`
	Copied uint64 `json:"copied"`
	Code   int    `json:"code"` // 0: done
	Over   bool   `json:"over"` // false: the recording ends before it

	from                  int64
	took, waited, copying time.Duration
	joined                bool // it is a part of a later one
}

// process is one recording.
type process struct {
	PID     int             `json:"pid"`
	Command string          `json:"command"`
	File    string          `json:"file"`
	Places  []trace.Place   `json:"places"` // which GPUs its devices are, one after another
	Records int             `json:"records"`
	Peak    [metrics]uint64 `json:"peak"` // of the sum
	Series  []*series       `json:"series"`

	from, to   int64
	steps      []step
	blocks     []block
	operations []operation
}

type reader struct {
	p       *process
	records *trace.Records
	known   map[origin]int // the numbers of series
	open    map[uint64]int // of blocks, by address
	begun   map[uint32]int // of operations, by number
	resumed map[string]int // the last resume that is over, by tag
}

// Read reads a recording. Errors: trace.ErrMalformed, or the operating system's.
func read(path string) (*process, error) {
	records, file, err := trace.OpenRecords(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := reader{p: &process{File: path, PID: records.PID, from: math.MaxInt64, Series: []*series{}}, records: records,
		known: map[origin]int{}, open: map[uint64]int{}, begun: map[uint32]int{}, resumed: map[string]int{}}
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
		r.p.Records++
		r.p.from, r.p.to = min(r.p.from, at), max(r.p.to, at)
		switch record.Kind {
		case trace.Begin:
			r.begin(record, at)
		case trace.End:
			r.end(record, at)
		case trace.Figures:
			r.figures(record, at)
		default:
			alive.Apply(record, func(b trace.Record) { r.addBlock(b, at) },
				func(b trace.Record, _ uint64) { r.freed(b, at) })
		}
	}
	if r.p.Records == 0 {
		return nil, fmt.Errorf("%s: nothing is recorded in it", path)
	}
	r.p.Command, r.p.Places = records.Command, append([]trace.Place{}, records.Places...)
	r.p.operations = slices.DeleteFunc(r.p.operations, func(o operation) bool { return o.joined })
	for i := range r.p.operations {
		if o := &r.p.operations[i]; !o.Over {
			o.took = time.Duration(r.p.to - o.from)
		}
	}
	for _, s := range r.p.sums() {
		r.p.Peak[s.metric] = max(r.p.Peak[s.metric], s.value)
	}
	return r.p, nil
}

func (r *reader) series(device int, tag string, plain bool) int {
	key := origin{device, tag, plain}
	i, ok := r.known[key]
	if !ok {
		i = len(r.p.Series)
		r.known[key] = i
		if plain {
			tag = "not pausable"
		}
		if device >= 0 {
			tag = fmt.Sprintf("%s, device %d", tag, device)
		}
		r.p.Series = append(r.p.Series, &series{Label: tag, Plain: plain})
	}
	return i
}

func (r *reader) set(at int64, i, metric int, value uint64) {
	s := r.p.Series[i]
	if s.value[metric] == value {
		return
	}
	s.value[metric] = value
	s.Peak = max(s.Peak, value)
	r.p.steps = append(r.p.steps, step{at, i, metric, value})
}

// addBlock adds a block. A pool's blocks do not count: the segments that the pool took do.
func (r *reader) addBlock(b trace.Record, at int64) {
	pausable := b.Flags&trace.FlagPausable != 0
	i := r.series(int(b.Device), r.records.TagName(b), !pausable)
	if b.Flags&trace.FlagBlock != 0 {
		return
	}
	s := r.p.Series[i]
	r.open[b.Address] = len(r.p.blocks)
	r.p.blocks = append(r.p.blocks, block{b.Address, b.Size, at, math.MaxInt64, i, b.Thread,
		b.Flags&trace.FlagEarlier != 0})
	if s.other >= b.Size && b.Time-s.sampled < uint64(time.Millisecond) {
		s.other -= b.Size // another thread made it, and the figures already had it
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
	s := r.p.Series[freed.series]
	s.allocated -= freed.size
	r.set(at, freed.series, live, s.allocated+s.other)
	r.set(at, freed.series, physical, s.value[physical]-min(s.value[physical], freed.size)) // 0: the tag is paused
}

// figures takes the engine's own figures.
func (r *reader) figures(record trace.Record, at int64) {
	i := r.series(int(record.Device), r.records.TagName(record), false)
	s := r.p.Series[i]
	s.other, s.sampled = record.Address-min(record.Address, s.allocated), record.Time
	r.set(at, i, live, s.allocated+s.other)
	r.set(at, i, physical, record.Size)
	r.set(at, i, backup, record.Stream+record.Pool+record.Other)
}

func (r *reader) begin(record trace.Record, at int64) {
	r.begun[record.Thread] = len(r.p.operations)
	r.p.operations = append(r.p.operations, operation{Kind: trace.Operation(record.Flags).String(),
		Tag: r.records.TagName(record), from: at})
}

func (r *reader) end(record trace.Record, at int64) {
	if _, ok := r.begun[record.Thread]; !ok { // it began before the recording
		r.begin(record, at)
	}
	n := r.begun[record.Thread]
	delete(r.begun, record.Thread)
	o := &r.p.operations[n]
	o.Over, o.Code = true, int(record.Device)
	o.took, o.waited, o.copying = time.Duration(record.Address), time.Duration(record.Pool), time.Duration(record.Other)
	o.Bytes, o.Copied = record.Size, record.Stream
	o.from = at - int64(o.took) // with its wait before Begin
	r.p.from = min(r.p.from, o.from)
	if o.Kind == trace.Resume.String() {
		r.join(o)
		r.resumed[o.Tag] = n
	}
}

const (
	outOfMemory = 2 // the code of a resume that is short of memory
	partsApart  = int64(time.Second)
)

// join makes a resume that was short of memory a part of the next resume of its tag. Python waits in parts, so that it
// can run signal handlers in between, and each part is a resume of the library.
func (r *reader) join(o *operation) {
	n, known := r.resumed[o.Tag]
	if !known {
		return
	}
	part := &r.p.operations[n]
	if part.Code != outOfMemory || o.from-part.from-int64(part.took) > partsApart {
		return
	}
	before := time.Duration(max(0, o.from-part.from))
	o.from, o.took, o.waited = o.from-int64(before), o.took+before, o.waited+before
	part.joined = true
}

// sums returns the steps of the sum of all series, as one series.
func (p *process) sums() []step {
	all := slices.Clone(p.steps)
	var sum [metrics]uint64
	now := make([][metrics]uint64, len(p.Series))
	for i, s := range p.steps {
		sum[s.metric] += s.value - now[s.series][s.metric]
		now[s.series][s.metric] = s.value
		all[i] = step{s.at, 0, s.metric, sum[s.metric]}
	}
	return all
}

// mostSeries is the most series that a process keeps.
const mostSeries = 12

// merge keeps the largest series, and makes one of the others.
func (p *process) merge() {
	if len(p.Series) <= mostSeries {
		return
	}
	order := make([]int, len(p.Series))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(p.Series[y].Peak, p.Series[x].Peak) })
	const last = mostSeries - 1
	others := &series{Label: fmt.Sprintf("%d others", len(p.Series)-last)}
	drawn := make([]*series, 0, mostSeries)
	place := make([]int, len(p.Series))
	for rank, i := range order {
		if place[i] = min(rank, last); rank < last {
			drawn = append(drawn, p.Series[i])
		}
	}
	now := make([][metrics]uint64, len(p.Series))
	for n := range p.steps {
		s := &p.steps[n]
		i := s.series
		if s.series = place[i]; s.series == last {
			others.value[s.metric] += s.value - now[i][s.metric]
			now[i][s.metric] = s.value
			s.value = others.value[s.metric]
		}
	}
	for n := range p.blocks {
		p.blocks[n].series = place[p.blocks[n].series]
	}
	p.Series = append(drawn, others)
}

// described is an operation for people. Times are in seconds.
type described struct {
	operation
	From    float64 `json:"from"`
	Took    float64 `json:"took"`
	Rate    float64 `json:"gb_per_s"` // of Bytes in Took
	Waited  float64 `json:"waited"`
	Copying float64 `json:"copying"`
	Driver  float64 `json:"driver"`
	Bound   string  `json:"bound"` // what most of the time went to
}

func (o *operation) describe(zero int64) described {
	driver := max(0, o.took-o.waited-o.copying)
	d := described{operation: *o, From: time.Duration(o.from - zero).Seconds(), Took: o.took.Seconds(),
		Waited: o.waited.Seconds(), Copying: o.copying.Seconds(), Driver: driver.Seconds(), Bound: "driver calls"}
	if o.took > 0 {
		d.Rate = float64(o.Bytes) / o.took.Seconds() / 1e9
	}
	switch {
	case !o.Over:
		d.Driver, d.Bound = 0, "not known"
	case o.copying > driver && o.copying >= o.waited:
		d.Bound = "copying"
	case o.waited > driver:
		d.Bound = "waiting"
	}
	return d
}

func readAll(paths []string) ([]*process, error) {
	var processes []*process
	for _, path := range paths {
		p, err := read(path)
		if err != nil {
			return nil, err
		}
		p.merge()
		processes = append(processes, p)
	}
	return processes, nil
}
