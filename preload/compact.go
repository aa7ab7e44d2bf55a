package main

// #include "shim.h"
import "C"

import (
	"syscall"
	"time"

	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
)

// compactWithin is how long an allocation that finds no memory waits for that moment. A program without it ends, most
// likely, for lack of memory.
const compactWithin = 10 * time.Second

// CanCompact is vmm.Compactor.CanCompact: the gate gives the moment in which live memory can be moved.
func (p *Process) CanCompact() bool { return C.gate_unusable() == nil }

func (p *Process) Compact(ordinal int) error {
	e := p.engine.Load() // whose caller has it
	if state().Capturing || bool(C.checkpoint_asked()) {
		return cuda.Refuse(cuda.NotReady, "memory cannot be moved now")
	}
	for user := range gateUsers {
		if user.works && int(user.thread) == syscall.Gettid() { // it would wait for itself
			return cuda.Refuse(cuda.NotReady, "the thread is in a call that gives a device work")
		}
	}
	if !C.operation_has_threads() {
		return cuda.Refuse(cuda.OperatingSystem, "the process cannot make more threads")
	}
	defer C.operation_leave_threads()
	_, err := p.pauseGated(e, vmm.Options{}, compactWithin, gating{idle: notIdle, other: func() error {
		_, err := e.Compact(ordinal)
		return err
	}})
	return err
}

// tmsMakeRoom gives slack of a device back for a call that went to CUDA and found too little memory, and reports
// whether there was any.
//
//export tmsMakeRoom
func tmsMakeRoom(device C.int) (made C.bool) {
	_ = goruntime.Run(func() error {
		if e := self.engine.Load(); e != nil {
			made = C.bool(e.MakeRoom(int(device)))
		}
		return nil
	})
	return made
}
