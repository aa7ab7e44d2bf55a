package backup

import (
	"sync"

	"tms/vmm/cuda"
)

// Peer keeps contents in free memory of other GPUs, where the copy engine of the source device writes
// and reads them. That takes no context on the other GPU: one would cost half a GiB there, for every
// process, and a tenth of a second.
//
// At least 256 MiB, and 2% of its memory, stay free on the other GPU.
type Peer struct {
	driver *cuda.Driver
	host   Store
	chunk  uint64     // bytes of a chunk, at most
	taking sync.Mutex // held while memory is taken

	garbage *trash[*peerChunk] // whose last contents were discarded

	mu     sync.Mutex
	warn   func(note string)
	warned map[string]bool
	held   map[int]uint64 // bytes by device
}

// NewPeer returns a store of other devices' memory. What finds no place there goes to host.
func NewPeer(driver *cuda.Driver, host Store) *Peer {
	p := &Peer{driver: driver, host: host, chunk: chunkSize, warned: map[string]bool{}, held: map[int]uint64{}}
	p.garbage = newTrash(p.release)
	return p
}

// Warn has f told, in one line and once for every reason, why contents have gone to the host store.
func (p *Peer) Warn(f func(note string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.warn = f
}

func (p *Peer) note(reason string) {
	p.mu.Lock()
	warn := p.warn
	if warn == nil || p.warned[reason] {
		p.mu.Unlock()
		return
	}
	p.warned[reason] = true
	p.mu.Unlock()
	warn("peer backup: " + reason + "; contents wait in host memory instead")
}

// Save is Store.Save. What goes wrong in obtaining memory sends the contents it was for to the host
// store; a copy that fails is an error.
func (p *Peer) Save(job Job, items []Item) ([]Contents, error) {
	contents := make([]Contents, len(items))
	var taken []*peerRange
	err := onCopies(p.driver, job, func(c *copies) error {
		for i, item := range items {
			kept, own := item.Kept.(*peerContents)
			if !own {
				continue
			}
			contents[i] = kept
			if err := c.toPeer(kept.copies(item.Span, item.parts()...)); err != nil {
				return err
			}
		}
		taken = p.place(job, items)
		for _, r := range taken {
			if err := p.fill(c, r, items); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		for _, r := range taken {
			if r.refused {
				continue
			}
			for _, placed := range r.placed {
				contents[placed.item] = placed.contents
			}
		}
		err = p.saveToHost(job, items, contents)
	}
	for _, r := range taken {
		if err != nil || r.refused {
			p.garbage.add(r.chunks...)
		}
	}
	if err != nil {
		return nil, err
	}
	return contents, nil
}

// release gives a chunk back to its device.
func (p *Peer) release(chunk *peerChunk) error {
	err := chunk.release(p.driver)
	if err == nil && chunk.held {
		p.mu.Lock()
		defer p.mu.Unlock()
		chunk.held = false
		p.held[chunk.in.device] -= chunk.size
	}
	return err
}

// Drain waits until discarded memory has gone back to its device.
func (p *Peer) Drain() { p.garbage.drain() }

// saveToHost saves what has no contents yet, nor Kept ones here.
func (p *Peer) saveToHost(job Job, items []Item, contents []Contents) error {
	var rest []Item
	var places []int
	for i, c := range contents {
		if c == nil {
			rest, places = append(rest, items[i]), append(places, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	saved, err := p.host.Save(job, rest)
	for n, c := range saved {
		contents[places[n]] = c
	}
	return err
}
