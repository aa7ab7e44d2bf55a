package caching

import "tms/vmm/pool"

// Snapshot is pool.Pool.Snapshot, with each segment's stream and type.
func (p *Pool) Snapshot() []pool.Segment {
	p.Lock()
	defer p.Unlock()
	var segments []pool.Segment
	for _, r := range p.table.Regions() {
		list := p.listOf(p.at(r.First))
		s := pool.Segment{Address: r.Address, Size: r.Size, Stream: list.stream, Type: "large"}
		if list.pool.small {
			s.Type = "small"
		}
		segments = append(segments, s)
	}
	return pool.Fill(segments, p.table.Blocks())
}
