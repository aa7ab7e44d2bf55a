package caching

import (
	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
)

// segmentInfo is one of the pool's segments, as torch.cuda.memory_snapshot has it. Sizes are in bytes.
type segmentInfo struct {
	Device    int
	Address   uintptr
	Size      uint64
	Allocated uint64
	Active    uint64
	Requested uint64 // of active blocks
	Stream    pool.Stream
	Type      string      // small or large
	Blocks    []blockInfo // by address, without gaps
}

type blockInfo struct {
	Size      uint64
	Requested uint64 // 0 when inactive
	Age       uint64 // of a free block, in searches; counted with garbage collection
	State     string // active_allocated, active_pending_free or inactive
}

// snapshot lists the segments by address.
func (p *Pool) snapshot() []segmentInfo {
	p.Lock()
	defer p.Unlock()
	all := []segmentInfo{}
	for _, r := range p.table.Regions() {
		all = append(all, p.describe(r))
	}
	return all
}

func (p *Pool) describe(r chunks.Segment) segmentInfo {
	on := p.listOf(p.at(r.First))
	s := segmentInfo{Device: p.device, Address: r.Address, Size: r.Size, Stream: on.stream, Type: "large"}
	if on.pool.small {
		s.Type = "small"
	}
	for h := r.First; h != none; h = p.at(h).Next {
		b := p.at(h)
		info := blockInfo{Size: b.Size, Requested: b.Requested, State: "active_pending_free"}
		switch {
		case !b.Taken():
			info.State = "inactive"
			info.Age = on.pool.clock - b.Own.born
		case !b.Own.pending:
			info.State = "active_allocated"
			s.Allocated += b.Size
		}
		if b.Taken() {
			s.Active += b.Size
			s.Requested += b.Requested
		}
		s.Blocks = append(s.Blocks, info)
	}
	return s
}

// resetSums sets the sums in Detail to 0. (torch.cuda.reset_accumulated_memory_stats)
func (p *Pool) resetSums() {
	p.Lock()
	defer p.Unlock()
	p.eachStat(func(s *stat) { s.Allocated, s.Freed = 0, 0 })
	p.retries, p.ooms = 0, 0
}
