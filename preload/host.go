package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"tms/internal/machine/hostmemory"
	"tms/preload/goruntime"
	"tms/preload/watch"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// The process as the engine sees it, a vmm.Host.

// Announce lets a free find out, without the engine, whose memory an address is.
func (p *Process) Announce(base uintptr, size uint64) error {
	if C.arena_add(C.uintptr_t(base), C.size_t(size)) != 0 {
		return fmt.Errorf("pausable memory lies in %d address reservations already, and no more can be noted: %w",
			C.ARENAS_MAX, cuda.OutOfMemory)
	}
	return nil
}

// Contexts walks the contexts that contexts.c has seen being made.
func (p *Process) Contexts(ordinal int, use func(cuda.Context) error) error {
	slots := atomic.LoadInt32((*int32)(unsafe.Pointer(&C.context_slots)))
	for slot := range C.int(slots) {
		context := C.context_acquire(slot, C.int(ordinal))
		if context == 0 {
			continue
		}
		if err := useContext(slot, cuda.Context(context), use); err != nil {
			return err
		}
	}
	return nil
}

// useContext releases the slot even when use panics, because a thread that destroys the context waits for that.
func useContext(slot C.int, context cuda.Context, use func(cuda.Context) error) error {
	defer C.context_release(slot)
	return use(context)
}

// WithoutCaptures holds up the threads that would begin a capture.
func (p *Process) WithoutCaptures(call func() error) error {
	if !C.captures_prevent() {
		return cuda.StreamCaptureUnsupported
	}
	defer C.captures_allow()
	return call()
}

// Gated keeps the gate closed, or opens it.
func (p *Process) Gated(now bool) {
	p.gate.Lock()
	p.gate.paused = now
	p.gate.Unlock()
	if !now {
		p.openGate()
	}
}

// Exposed has copies.c check the addresses of copies.
func (p *Process) Exposed(now bool) { exposed(now) }

// Observe records the transition.
func (p *Process) Observe(t vmm.Transition) { watch.Transition(t) }

// Warn writes to stderr.
func (p *Process) Warn(line string) { goruntime.Log(line) }

// Holders asks NVML.
func (p *Process) Holders(uuid string) string { return p.holders(uuid) }

// Ledger is shared with the user's other processes.
func (p *Process) Ledger() *hostmemory.Ledger { return p.ledger }

// Descriptors are held by the thread of the process's own socket.
func (p *Process) Descriptors() store.Descriptors { return p.socket.Held() }

// Reserved memory is the keeper's.
func (p *Process) Reserved() store.Reserve { return extents{p} }
