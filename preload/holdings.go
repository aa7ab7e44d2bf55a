package main

import (
	"fmt"
	"sync"

	"tms/internal/control/server"
	"tms/preload/goruntime"
)

// holding is a chunk that is mapped or paused here, or the manifest of an open set. The socket's thread has its
// descriptor for the next keeper, because the driver exports no memory that was imported.
type holding struct {
	uses int
	open bool // perhaps, at the socket's thread
}

// holdings has them by the numbers that the keeper knows.
type holdings struct {
	sync.Mutex // also held while the process asks itself
	of         map[uint64]*holding
	said       bool // that a descriptor is not kept

	held server.Held
}

func (h *holdings) use(id uint64) {
	h.Lock()
	defer h.Unlock()
	if h.of[id] == nil {
		h.of[id] = &holding{}
	}
	h.of[id].uses++
}

// isOpen reports whether the socket's thread has a descriptor, perhaps.
func (h *holdings) isOpen(id uint64) bool {
	h.Lock()
	defer h.Unlock()
	return h.of[id] != nil && h.of[id].open
}

// keepOpen keeps a descriptor of what is in use, unless the socket's thread has one already.
func (h *holdings) keepOpen(id, bytes uint64, descriptor int) {
	h.Lock()
	defer h.Unlock()
	of := h.of[id]
	if of == nil || of.open {
		return
	}
	of.open = true
	if err := h.held.Put(id, bytes, descriptor); err != nil && !h.said {
		h.said = true
		goruntime.Log(fmt.Sprintf("if the keeper is killed, no other can take over a set from this process: %v", err))
	}
}

func (h *holdings) unuse(id uint64) {
	h.Lock()
	defer h.Unlock()
	h.of[id].uses--
	for id, of := range h.of { // an earlier close may have failed
		if of.uses == 0 && (!of.open || h.held.Drop(id) == nil) {
			delete(h.of, id)
		}
	}
}
