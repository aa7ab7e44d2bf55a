package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"tms/internal/hostmemory"
	"tms/preload/goruntime"
	"tms/preload/record"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/store"
)

// host is this process as the engine sees it, a vmm.Host.
type host struct {
	compactor
	offers
	processes
}

// Announce lets a free find out, without the engine, whose memory an address is.
func (host) Announce(base uintptr, size uint64) error {
	if C.arena_add(C.uintptr_t(base), C.size_t(size)) != 0 {
		return fmt.Errorf("pausable memory lies in %d address reservations already, and no more can be noted: %w",
			C.ARENAS_MAX, cuda.OutOfMemory)
	}
	return nil
}

// Contexts walks the contexts that contexts.c has seen being made.
func (host) Contexts(ordinal int, use func(cuda.Context) error) error {
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
func (host) WithoutCaptures(call func() error) error {
	if !C.captures_hold() {
		return cuda.StreamCaptureUnsupported
	}
	defer C.captures_let()
	return call()
}

// Ungated opens the gate.
func (host) Ungated() { openGate() }

// Exposed has copies.c check the addresses of copies.
func (host) Exposed(now bool) { exposed(now) }

// Observe records the transition.
func (host) Observe(t vmm.Transition) { record.Transition(t) }

// Warn writes to stderr.
func (host) Warn(line string) { goruntime.Log(line) }

// Holders asks NVML.
func (host) Holders(uuid string) string { return holders(uuid) }

// Ledger is shared with the user's other processes.
func (host) Ledger() *hostmemory.Ledger { return ledger }

// Descriptors are kept by the thread of the process's own socket.
func (host) Descriptors() store.Descriptors { return descriptors{} }

// Reserved memory is the keeper's.
func (host) Reserved() store.Reserve { return extents{} }
