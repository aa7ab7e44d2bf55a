package caching

import (
	"fmt"

	"tms/vmm/pool"
)

// RecordStream is pool.StreamRecorder.RecordStream. Errors: also pool.ErrOption for a source without events.
func (p *Pool) RecordStream(address uintptr, stream pool.Stream) error {
	if address == 0 {
		return nil
	}
	p.Lock()
	defer p.Unlock()
	h, err := p.table.Find(address)
	if err != nil {
		return err
	}
	if p.events == nil {
		return fmt.Errorf("%w: caching needs a source with events to serve several streams", pool.ErrOption)
	}
	if stream != p.listOf(p.at(h)).stream {
		p.uses.Note(h, stream)
	}
	return nil
}

// back takes back a freed block that other streams used.
func (p *Pool) back(h handle) error {
	p.retire(h)
	return nil
}
