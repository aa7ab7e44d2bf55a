package main

import (
	"fmt"
	"maps"
	"sync"

	"tms/internal/control/server"
	"tms/preload/goruntime"
)

// part is a chunk that is mapped or paused here, or the manifest of an open set. The socket's thread keeps its
// descriptor for the next keeper: the driver exports no memory that was imported. (internal/control/server/hold.go)
type part struct {
	uses int
	open bool // perhaps, at the socket's thread
}

// parts has what is in use, by its number.
type parts struct {
	sync.Mutex // also held while the process asks itself
	of         map[uint64]*part
	said       bool // that a descriptor could not be held

	held server.Held
}

func (p *parts) use(id uint64) {
	p.Lock()
	defer p.Unlock()
	if p.of[id] == nil {
		p.of[id] = &part{}
	}
	p.of[id].uses++
}

// isOpen reports whether the socket's thread has a descriptor, perhaps.
func (p *parts) isOpen(id uint64) bool {
	p.Lock()
	defer p.Unlock()
	return p.of[id] != nil && p.of[id].open
}

// keepOpen keeps a descriptor of what is in use, unless the socket's thread has one already.
func (p *parts) keepOpen(id, bytes uint64, descriptor int) {
	p.Lock()
	defer p.Unlock()
	of := p.of[id]
	if of == nil || of.open {
		return
	}
	of.open = true
	if err := p.held.Put(id, bytes, descriptor); err != nil && !p.said {
		p.said = true
		goruntime.Log(fmt.Sprintf("if the keeper is killed, no other can take over a set from this process: %v", err))
	}
}

// renumber gives what is in use other numbers. The socket's thread has its descriptors by these, or awaits them.
func (p *parts) renumber(numbers map[uint64]uint64) {
	p.Lock()
	defer p.Unlock()
	moved := map[uint64]*part{}
	for id, of := range p.of {
		if to := numbers[id]; to != 0 {
			delete(p.of, id)
			moved[to] = of
		}
	}
	maps.Copy(p.of, moved)
}

func (p *parts) unuse(id uint64) {
	p.Lock()
	defer p.Unlock()
	p.of[id].uses--
	for id, of := range p.of { // an earlier close may have failed
		if of.uses == 0 && (!of.open || p.held.Drop(id) == nil) {
			delete(p.of, id)
		}
	}
}
