package caching

import "tms/vmm/pool"

// Snapshot is pool.Pool.Snapshot, with each segment's stream and type, and with freed blocks that other streams use.
func (p *Pool) Snapshot() []pool.Segment {
	p.Lock()
	defer p.Unlock()
	var segments []pool.Segment
	var blocks []pool.SegmentBlock
	for _, r := range p.table.Regions() {
		list := p.listOf(p.at(r.First))
		s := pool.Segment{Address: r.Address, Size: r.Size, Stream: list.stream, Type: "large"}
		if list.pool.small {
			s.Type = "small"
		}
		segments = append(segments, s)
		for h := r.First; h != none; h = p.at(h).Next {
			b := p.at(h)
			if !b.Taken() {
				continue
			}
			block := pool.SegmentBlock{Address: b.Address, Size: b.Size, Requested: b.Requested, State: pool.Allocated}
			if b.Own.pending {
				block.State = pool.PendingFree
			}
			blocks = append(blocks, block)
		}
	}
	return pool.Fill(segments, blocks)
}
