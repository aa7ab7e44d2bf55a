package caching

import (
	"slices"

	"tms/vmm/pool"
)

// usage is kept of a block that streams other than its own have used.
type usage struct {
	streams []pool.Stream // whose work is not in an event yet
	pending int           // events not yet done
}

// use notes that a stream has used a block.
func (p *Pool) use(b *block, stream pool.Stream) {
	if b.Own.usage == 0 {
		if last := len(p.unused) - 1; last >= 0 {
			b.Own.usage = p.unused[last]
			p.unused = p.unused[:last]
		} else {
			p.usages = append(p.usages, usage{})
			b.Own.usage = uint32(len(p.usages) - 1)
		}
	}
	if u := &p.usages[b.Own.usage]; !slices.Contains(u.streams, stream) {
		u.streams = append(u.streams, stream)
	}
}

// disuse forgets what is kept of a block.
func (p *Pool) disuse(b *block) {
	if b.Own.usage == 0 {
		return
	}
	p.usages[b.Own.usage] = usage{streams: p.usages[b.Own.usage].streams[:0]}
	p.unused = append(p.unused, b.Own.usage)
	b.Own.usage, b.Own.pending = 0, false
}
