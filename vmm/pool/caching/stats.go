package caching

import (
	"math"

	"tms/vmm/pool"
)

// Stat is one quantity: its value, its highest value, and the sums of its rises and falls.
type Stat struct {
	Current   int64 `json:"current"`
	Peak      int64 `json:"peak"`
	Allocated int64 `json:"allocated"`
	Freed     int64 `json:"freed"`
}

func (s *Stat) rise(amount int64) {
	s.Current += amount
	s.Allocated += amount
	s.Peak = max(s.Peak, s.Current)
}

func (s *Stat) fall(amount int64) {
	s.Current -= amount
	s.Freed += amount
}

// change is rise or fall.
func (s *Stat) change(amount int64) {
	if amount > 0 {
		s.rise(amount)
	} else {
		s.fall(-amount)
	}
}

// StatArray is a quantity of both pools together and of each.
type StatArray struct {
	All   Stat `json:"all"`
	Small Stat `json:"small_pool"`
	Large Stat `json:"large_pool"`
}

// Detail is Stats.Detail: torch.cuda.memory_stats, nested. Sizes are in bytes. A block is active while
// it is allocated or other streams may use it.
type Detail struct {
	Allocation         StatArray `json:"allocation"`     // blocks allocated
	Segment            StatArray `json:"segment"`        // held from the source
	Active             StatArray `json:"active"`         // blocks
	InactiveSplit      StatArray `json:"inactive_split"` // free blocks that are parts of segments
	AllocatedBytes     StatArray `json:"allocated_bytes"`
	ReservedBytes      StatArray `json:"reserved_bytes"`
	ActiveBytes        StatArray `json:"active_bytes"`
	InactiveSplitBytes StatArray `json:"inactive_split_bytes"`
	RequestedBytes     StatArray `json:"requested_bytes"` // of active blocks, before rounding

	AllocRetries  int64 `json:"num_alloc_retries"` // mallocs that had all cached segments given back
	OutOfMemories int64 `json:"num_ooms"`

	OversizeAllocations Stat  `json:"oversize_allocations"` // of max_split_size and more
	OversizeSegments    Stat  `json:"oversize_segments"`
	MaxSplitSize        int64 `json:"max_split_size"` // -1 when there is none
}

// counters are the quantities of one StatArray index, side by side because they change together.
type counters struct {
	allocation, allocatedBytes, requestedBytes, active, activeBytes Stat
	inactiveSplit, inactiveSplitBytes, segment, reservedBytes       Stat
}

type stats struct {
	counters       struct{ all, small, large counters }
	oversize       struct{ allocations, segments Stat }
	retries, ooms  int64
	requested      Stat // of live blocks
	mallocs, frees uint64
	failures       uint64
	sourceMallocs  uint64
	sourceFrees    uint64
	sourceFailures uint64
}

// both returns the counters of all blocks and of those in a block's pool.
func (p *Pool) both(b *block) (all, own *counters) {
	return &p.counters.all, p.shelfOf(b).counters
}

func (p *Pool) countMalloc(b *block) {
	all, own := p.both(b)
	all.malloc(b)
	own.malloc(b)
	if b.size >= p.maxSplit {
		p.oversize.allocations.rise(1)
	}
	p.requested.rise(int64(b.requested))
	p.mallocs++
}

func (c *counters) malloc(b *block) {
	c.allocation.rise(1)
	c.allocatedBytes.rise(int64(b.size))
	c.requestedBytes.rise(int64(b.requested))
	c.active.rise(1)
	c.activeBytes.rise(int64(b.size))
}

// countFree is for a block that stops being allocated; it may stay active.
func (p *Pool) countFree(b *block) {
	all, own := p.both(b)
	all.free(b)
	own.free(b)
	if b.size >= p.maxSplit {
		p.oversize.allocations.fall(1)
	}
	p.requested.fall(int64(b.requested))
}

func (c *counters) free(b *block) {
	c.allocation.fall(1)
	c.allocatedBytes.fall(int64(b.size))
}

func (p *Pool) countInactive(b *block) {
	all, own := p.both(b)
	all.inactive(b)
	own.inactive(b)
}

func (c *counters) inactive(b *block) {
	c.active.fall(1)
	c.activeBytes.fall(int64(b.size))
	c.requestedBytes.fall(int64(b.requested))
}

// countSplit takes the net change of one call, to the pool of a block.
func (p *Pool) countSplit(b *block, blocks, bytes int64) {
	all, own := p.both(b)
	all.inactiveSplit.change(blocks)
	all.inactiveSplitBytes.change(bytes)
	own.inactiveSplit.change(blocks)
	own.inactiveSplitBytes.change(bytes)
}

// countSegment is for the block that is a segment, which comes (1) or goes (-1).
func (p *Pool) countSegment(b *block, sign int64) {
	all, own := p.both(b)
	for _, c := range [...]*counters{all, own} {
		c.segment.change(sign)
		c.reservedBytes.change(sign * int64(b.size))
	}
	if b.size >= p.maxSplit {
		p.oversize.segments.change(sign)
	}
}

// Stats is pool.Pool.Stats; its Detail is a *Detail.
func (p *Pool) Stats() pool.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := &p.counters.all
	return pool.Stats{
		Kind:          "caching",
		Requested:     uint64(p.requested.Current),
		Live:          uint64(all.allocatedBytes.Current),
		Reserved:      uint64(all.reservedBytes.Current),
		PeakRequested: uint64(p.requested.Peak),
		PeakLive:      uint64(all.allocatedBytes.Peak),
		PeakReserved:  uint64(all.reservedBytes.Peak),
		Blocks:        uint64(all.allocation.Current),
		Segments:      uint64(all.segment.Current),
		Mallocs:       p.mallocs, Frees: p.frees, Failures: p.failures,
		SourceMallocs: p.sourceMallocs, SourceFrees: p.sourceFrees, SourceFailures: p.sourceFailures,
		Detail: p.detail(),
	}
}

func (p *Pool) detail() *Detail {
	array := func(of func(*counters) *Stat) StatArray {
		return StatArray{*of(&p.counters.all), *of(&p.counters.small), *of(&p.counters.large)}
	}
	d := &Detail{
		Allocation:          array(func(c *counters) *Stat { return &c.allocation }),
		Segment:             array(func(c *counters) *Stat { return &c.segment }),
		Active:              array(func(c *counters) *Stat { return &c.active }),
		InactiveSplit:       array(func(c *counters) *Stat { return &c.inactiveSplit }),
		AllocatedBytes:      array(func(c *counters) *Stat { return &c.allocatedBytes }),
		ReservedBytes:       array(func(c *counters) *Stat { return &c.reservedBytes }),
		ActiveBytes:         array(func(c *counters) *Stat { return &c.activeBytes }),
		InactiveSplitBytes:  array(func(c *counters) *Stat { return &c.inactiveSplitBytes }),
		RequestedBytes:      array(func(c *counters) *Stat { return &c.requestedBytes }),
		AllocRetries:        p.retries,
		OutOfMemories:       p.ooms,
		OversizeAllocations: p.oversize.allocations,
		OversizeSegments:    p.oversize.segments,
		MaxSplitSize:        -1,
	}
	if p.maxSplit != math.MaxUint64 {
		d.MaxSplitSize = int64(p.maxSplit)
	}
	return d
}

// ResetPeakStats is pool.Pool.ResetPeakStats, and of the peaks in Detail.
func (p *Pool) ResetPeakStats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eachStat(func(s *Stat) { s.Peak = s.Current })
}

// ResetAccumulatedStats is pool.Accumulator.ResetAccumulatedStats.
func (p *Pool) ResetAccumulatedStats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eachStat(func(s *Stat) { s.Allocated, s.Freed = 0, 0 })
	p.retries, p.ooms = 0, 0
}

func (p *Pool) eachStat(visit func(*Stat)) {
	for _, c := range []*counters{&p.counters.all, &p.counters.small, &p.counters.large} {
		for _, s := range []*Stat{&c.allocation, &c.allocatedBytes, &c.requestedBytes, &c.active, &c.activeBytes,
			&c.inactiveSplit, &c.inactiveSplitBytes, &c.segment, &c.reservedBytes} {
			visit(s)
		}
	}
	visit(&p.oversize.allocations)
	visit(&p.oversize.segments)
	visit(&p.requested)
}
