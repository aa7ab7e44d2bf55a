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
	if b.usage == 0 {
		if last := len(p.unused) - 1; last >= 0 {
			b.usage = p.unused[last]
			p.unused = p.unused[:last]
		} else {
			p.usages = append(p.usages, usage{})
			b.usage = uint32(len(p.usages) - 1)
		}
	}
	if u := &p.usages[b.usage]; !slices.Contains(u.streams, stream) {
		u.streams = append(u.streams, stream)
	}
}

// disuse forgets what is kept of a block.
func (p *Pool) disuse(b *block) {
	if b.usage == 0 {
		return
	}
	p.usages[b.usage] = usage{streams: p.usages[b.usage].streams[:0]}
	p.unused = append(p.unused, b.usage)
	b.usage = 0
}
