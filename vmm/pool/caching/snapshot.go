package caching

import (
	"slices"

	"tms/vmm/pool"
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
	Blocks    []BlockInfo `json:"blocks"`       // by address, without gaps
}

// BlockInfo is one block of a Segment.
type BlockInfo struct {
	Size      uint64 `json:"size"`
	Requested uint64 `json:"requested_size"` // 0 when inactive
	Age       uint64 `json:"gc_counter"`     // of a free block, in searches; counted with garbage collection
	State     string `json:"state"`          // active_allocated, active_pending_free or inactive
}

// Snapshot is pool.Snapshotter.Snapshot; it returns a []Segment, by address, in the shape of
// torch.cuda.memory_snapshot. It takes time in proportion to the number of blocks, under the lock.
func (p *Pool) Snapshot() any {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []Segment{}
	for head := range p.heads {
		all = append(all, p.describe(head))
	}
	slices.SortFunc(all, func(x, y Segment) int {
		if x.Address < y.Address {
			return -1
		}
		return 1
	})
	return all
}

func (p *Pool) describe(head handle) Segment {
	on := p.shelfOf(p.at(head))
	s := Segment{Device: p.device, Address: p.at(head).address, Stream: on.stream, Type: "large"}
	if on.pool.small {
		s.Type = "small"
	}
	for h := head; h != none; h = p.at(h).next {
		b := p.at(h)
		info := BlockInfo{Size: b.size, Requested: b.requested, State: "active_pending_free"}
		s.Size += b.size
		switch {
		case b.allocated:
			info.State = "active_allocated"
			s.Allocated += b.size
		case b.free:
			info.State = "inactive"
			info.Age = on.pool.clock - b.born
		}
		if !b.free {
			s.Active += b.size
			s.Requested += b.requested
		}
		s.Blocks = append(s.Blocks, info)
	}
	return s
}
