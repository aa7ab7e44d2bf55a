package caching

import "math"

// stat is one quantity: its value, its highest value, and the sums of its rises and falls.
type stat struct {
	Current   int64 `json:"current"`
	Peak      int64 `json:"peak"`
	Allocated int64 `json:"allocated"`
	Freed     int64 `json:"freed"`
}

func (s *stat) rise(amount int64) {
	s.Current += amount
	s.Allocated += amount
	s.Peak = max(s.Peak, s.Current)
}

func (s *stat) fall(amount int64) {
	s.Current -= amount
	s.Freed += amount
}

// statArray is a quantity of both pools together and of each.
type statArray struct {
	All   stat `json:"all"`
	Small stat `json:"small_pool"`
	Large stat `json:"large_pool"`
}

// Detail is Stats.Detail: torch.cuda.memory_stats, nested. Sizes are in bytes. A block is active while it is allocated
// or other streams may use it.
type Detail struct {
	Allocation         statArray `json:"allocation"`     // blocks allocated
	Segment            statArray `json:"segment"`        // held from the source
	Active             statArray `json:"active"`         // blocks
	InactiveSplit      statArray `json:"inactive_split"` // free blocks that are parts of segments
	AllocatedBytes     statArray `json:"allocated_bytes"`
	ReservedBytes      statArray `json:"reserved_bytes"`
	ActiveBytes        statArray `json:"active_bytes"`
	InactiveSplitBytes statArray `json:"inactive_split_bytes"`
	RequestedBytes     statArray `json:"requested_bytes"` // of active blocks, before rounding

	AllocRetries  int64 `json:"num_alloc_retries"` // mallocs that gave back all cached segments
	OutOfMemories int64 `json:"num_ooms"`

	OversizeAllocations stat  `json:"oversize_allocations"` // of max_split_size and more
	OversizeSegments    stat  `json:"oversize_segments"`
	MaxSplitSize        int64 `json:"max_split_size"` // -1 when there is none
}

// The quantities that each pool counts.
const (
	allocation = iota
	allocatedBytes
	requestedBytes
	active
	activeBytes
	inactiveSplit
	inactiveSplitBytes
	segment
	reservedBytes
	quantities
)

type counters [quantities]stat

// stats has only the peaks of both pools together; the other totals are sums.
type stats struct {
	small, large  counters
	peaks         [quantities]int64
	oversize      struct{ allocations, segments stat }
	retries, ooms int64
}

// rise adds to a quantity; others are the other pool's, peaks those of both.
func (c *counters) rise(others *counters, peaks *[quantities]int64, quantity int, amount int64) {
	c[quantity].rise(amount)
	peaks[quantity] = max(peaks[quantity], c[quantity].Current+others[quantity].Current)
}

// change is rise or, for a negative amount, fall.
func (p *Pool) change(l *freeList, quantity int, amount int64) {
	if amount > 0 {
		l.counters.rise(l.others, &p.peaks, quantity, amount)
	} else if amount < 0 {
		l.counters[quantity].fall(-amount)
	}
}

func (p *Pool) countMalloc(b *block) {
	l := p.listOf(b)
	own, others, peaks := l.counters, l.others, &p.peaks
	size, requested := int64(b.Size), int64(b.Requested)
	own.rise(others, peaks, allocation, 1)
	own.rise(others, peaks, allocatedBytes, size)
	own.rise(others, peaks, requestedBytes, requested)
	own.rise(others, peaks, active, 1)
	own.rise(others, peaks, activeBytes, size)
	if b.Size >= p.maxSplit {
		p.oversize.allocations.rise(1)
	}
}

// countFree counts a block that is no longer allocated; it may stay active.
func (p *Pool) countFree(b *block) {
	own := p.listOf(b).counters
	own[allocation].fall(1)
	own[allocatedBytes].fall(int64(b.Size))
	if b.Size >= p.maxSplit {
		p.oversize.allocations.fall(1)
	}
}

func (p *Pool) countInactive(b *block) {
	own := p.listOf(b).counters
	own[active].fall(1)
	own[activeBytes].fall(int64(b.Size))
	own[requestedBytes].fall(int64(b.Requested))
}

// countSplit adds the net change of one call to the counters of a block's pool.
func (p *Pool) countSplit(b *block, blocks, bytes int64) {
	l := p.listOf(b)
	p.change(l, inactiveSplit, blocks)
	p.change(l, inactiveSplitBytes, bytes)
}

// countSegment counts a block that is a segment and is added (1) or removed (-1).
func (p *Pool) countSegment(b *block, sign int64) {
	l := p.listOf(b)
	p.change(l, segment, sign)
	p.change(l, reservedBytes, sign*int64(b.Size))
	if b.Size >= p.maxSplit && sign > 0 {
		p.oversize.segments.rise(1)
	} else if b.Size >= p.maxSplit {
		p.oversize.segments.fall(1)
	}
}

func (p *Pool) reserved() uint64 { return uint64(p.all(reservedBytes).Current) }

// all returns a quantity of both pools.
func (p *Pool) all(quantity int) stat {
	s, l := p.stats.small[quantity], p.stats.large[quantity]
	return stat{s.Current + l.Current, p.peaks[quantity], s.Allocated + l.Allocated, s.Freed + l.Freed}
}

func (p *Pool) detail() *Detail {
	d := &Detail{
		AllocRetries:        p.retries,
		OutOfMemories:       p.ooms,
		OversizeAllocations: p.oversize.allocations,
		OversizeSegments:    p.oversize.segments,
		MaxSplitSize:        -1,
	}
	for quantity, array := range [quantities]*statArray{
		allocation: &d.Allocation, allocatedBytes: &d.AllocatedBytes, requestedBytes: &d.RequestedBytes,
		active: &d.Active, activeBytes: &d.ActiveBytes, inactiveSplit: &d.InactiveSplit,
		inactiveSplitBytes: &d.InactiveSplitBytes, segment: &d.Segment, reservedBytes: &d.ReservedBytes,
	} {
		*array = statArray{p.all(quantity), p.stats.small[quantity], p.stats.large[quantity]}
	}
	if p.maxSplit != math.MaxUint64 {
		d.MaxSplitSize = int64(p.maxSplit)
	}
	return d
}

// ResetPeakStats is pool.Pool.ResetPeakStats; it also resets the peaks in Detail.
func (p *Pool) ResetPeakStats() {
	p.Lock()
	defer p.Unlock()
	p.table.ResetPeakStats()
	p.eachStat(func(s *stat) { s.Peak = s.Current })
	for quantity := range p.peaks {
		p.peaks[quantity] = p.all(quantity).Current
	}
}

func (p *Pool) eachStat(visit func(*stat)) {
	for _, c := range []*counters{&p.stats.small, &p.stats.large} {
		for quantity := range c {
			visit(&c[quantity])
		}
	}
	visit(&p.oversize.allocations)
	visit(&p.oversize.segments)
}
