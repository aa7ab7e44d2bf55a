package main

// #include "shim.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"tms/internal/aid/guard"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
)

// A resume with an order lets the program go on when its first step is back. The gate holds all threads but those that
// have waited for the step that they are about to use (order.c): docs/design/order.md.

// orderedResumeOperation resumes in an order, or as resumeOperation where that is impossible.
type orderedResumeOperation struct {
	resumeOperation
	number uint64
	ranges []vmm.OrderedRange
}

// orderOf reads an order from C's memory.
func orderOf(asked *C.struct_operation_transition) (ranges []vmm.OrderedRange) {
	for _, r := range unsafe.Slice(asked.ordered, asked.ordered_count) {
		ranges = append(ranges, vmm.OrderedRange{Address: uintptr(r.address), Size: uint64(r.size), Step: int(r.step)})
	}
	return ranges
}

func (o *orderedResumeOperation) run(p *Process, e *vmm.Engine) (bytes uint64, err error) {
	bytes, err = p.resumeInOrder(e, o)
	if err == nil {
		p.socket.Outside().Resumed()
		return bytes, nil
	}
	words := fmt.Sprintf("a resume brings all back before it returns, not in the order that it was given: %v", err)
	if before := p.orderTold.Swap(&words); before == nil || *before != words {
		goruntime.Log(words)
	}
	return o.resumeOperation.run(p, e)
}

// orderWithin is how long a resume waits for a safepoint before it goes on without an order. A program that wakes up
// has given its devices no work.
const orderWithin = 500 * time.Millisecond

// firstStep is what the caller of a resume with an order gets.
type firstStep struct {
	bytes uint64
	err   error
}

// freeForOrder returns an error where something keeps the gate closed for longer than an order: the order would let
// threads in to what that keeps paused.
func (p *Process) freeForOrder(e *vmm.Engine) error {
	if bool(C.checkpoint_asked()) || e.Records().Gated() {
		return errors.New("a gated pause, or another order, keeps memory paused")
	}
	if p.nccl.suspended.Load() {
		return errors.New("NCCL has not taken its memory again since a pause of everything")
	}
	return nil
}

// resumeInOrder returns when the first step is back, and how many bytes that was. After an error nothing has changed.
func (p *Process) resumeInOrder(e *vmm.Engine, o *orderedResumeOperation) (uint64, error) {
	if err := p.freeForOrder(e); err != nil {
		return 0, err
	}
	if !C.operation_has_threads() {
		return 0, errors.New("the process cannot make more threads")
	}
	first := make(chan firstStep, 2)
	go func() {
		defer C.operation_leave_threads()
		bytes, failed := uint64(0), error(nil)
		err := goruntime.Run(func() error {
			how := gating{idle: notIdle, other: func() (err error) {
				bytes, failed, err = p.bringBack(e, o, first)
				return err
			}}
			_, err := p.pauseAtOnce(e, vmm.Options{Tags: o.options.Tags}, orderWithin, orderWithin, how)
			return err
		})
		first <- firstStep{bytes, err} // nothing reads it where the caller has gone on
		if failed != nil {             // a full stderr keeps this thread, and no pause
			goruntime.Log(failed.Error())
		}
	}()
	back := <-first
	return back.bytes, back.err
}

// bringBack resumes while the gate is closed. It lets threads in step by step, from the first step on, and tells first
// when those may go on. failed is the error that nothing else returns, because the caller has gone on.
func (p *Process) bringBack(e *vmm.Engine, o *orderedResumeOperation, first chan<- firstStep) (mapped uint64, failed,
	err error) {
	if err := p.freeForOrder(e); err != nil { // a gated pause has ended since
		return 0, nil, err
	}
	options, begun := o.options, false
	options.Barred = p.socket.Outside().Covers
	p.findPlaces(e)
	options.Order = &vmm.Order{
		Ranges: o.ranges,
		Back: func(step int, mapped uint64) {
			switch {
			case begun:
				C.order_goes_on(C.int(step))
			case e.Records().Gated(): // else all is back
				begun = true
				p.beginOrder(o.number, step)
				first <- firstStep{mapped, nil}
			}
		},
		Ended: func(err error) {
			if begun {
				failed = p.endOrder(err)
			}
		},
	}
	err = guard.Call(func() (err error) {
		mapped, err = e.Resume(options)
		return err
	})
	if begun {
		failed = cmp.Or(failed, err)
	}
	return mapped, failed, err
}

// beginOrder lets in threads that wait for their steps, unless a client stops the program.
func (p *Process) beginOrder(number uint64, step int) {
	p.gate.Lock()
	defer p.gate.Unlock()
	C.order_begin(C.uint64_t(number), C.int(step))
	if p.gate.stops == 0 {
		C.gate_set(C.GATE_ORDERED)
	}
}

// endOrder opens the gate. After an error it makes calls fail that would wait for memory which does not come, until a
// resume brings that back. No resume begins before endOrder returns, and then nothing else keeps the gate closed, so the
// resume opens it before it returns. endOrder returns the error that these calls have.
func (p *Process) endOrder(err error) error {
	defer p.openGate()
	if err == nil {
		p.gate.Lock()
		defer p.gate.Unlock()
		p.gate.pausing = false
		return nil
	}
	hint := ""
	if cuda.Code(err) == int(cuda.IllegalAddress) {
		hint = ", which is what a kernel gets that uses memory before it is back"
	}
	failed := fmt.Errorf("the resume was to bring memory back in an order, and has failed: %w%s. What was back stays, "+
		"and the rest is paused with its contents: CUDA calls fail with %d until a resume brings it back", err, hint,
		C.ERROR_ILLEGAL_STATE)
	p.orderFailed.Store(&failed)
	p.gate.Lock()
	if p.gate.pausing = false; p.gate.paused { // else the rest was freed
		C.gate_set(C.GATE_CLOSED)
		C.gate_refuse(true)
		C.order_fail()
	}
	p.gate.Unlock()
	return failed
}

// tmsOrderFailed returns the error of the order that has failed last.
//
//export tmsOrderFailed
func tmsOrderFailed() C.int { return report(*self.orderFailed.Load()) }
