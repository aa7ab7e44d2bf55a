package caching

import (
	"tms/vmm/pool"
	"tms/vmm/pool/internal/chunks"
)

// Segment is one of the pool's segments as Snapshot finds it. Sizes are in bytes.
type Segment struct {
	Device    int         `json:"device"`
	Address   uintptr     `json:"address"`
	Size      uint64      `json:"total_size"`
	Allocated uint64      `json:"allocated_size"`
	Active    uint64      `json:"active_size"`
	Requested uint64      `json:"requested_size"` // of active blocks
	Stream    pool.Stream `json:"stream"`
	Type      string      `json:"segment_type"` // small or large
	Blocks    []blockInfo `json:"blocks"`       // by address, without gaps
}

type blockInfo struct {
	Size      uint64 `json:"size"`
	Requested uint64 `json:"requested_size"` // 0 when inactive
	Age       uint64 `json:"gc_counter"`     // of a free block, in searches; counted with garbage collection
	State     string `json:"state"`          // active_allocated, active_pending_free or inactive
}

// Snapshot is pool.Snapshotter.Snapshot; it returns a []Segment, by address, in torch.cuda.memory_snapshot's shape.
func (p *Pool) Snapshot() any {
	p.Lock()
	defer p.Unlock()
	all := []Segment{}
	for _, r := range p.table.Regions() {
		all = append(all, p.describe(r))
	}
	return all
}

func (p *Pool) describe(r chunks.Segment) Segment {
	on := p.listOf(p.at(r.First))
	s := Segment{Device: p.device, Address: r.Address, Size: r.Size, Stream: on.stream, Type: "large"}
	if on.pool.small {
		s.Type = "small"
	}
	for h := range p.table.In(r) {
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
