package main

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tms/preload/goruntime"
)

// A signal that asks a paused program to end (SIGINT, SIGTERM, and SIGHUP where it has a terminal) would get no answer:
// the thread that would act on it waits at the gate, and a handler of Python's only leaves a note for that thread. So
// the process resumes itself, or, where memory does not suffice, makes the waiting calls fail. goruntime/handlers.c sees
// the signals, and their handlers run as ever.

const (
	signalLook = 100 * time.Millisecond // between looks whether a signal has come
	signalTry  = 250 * time.Millisecond // between tries to resume
)

// watchSignals begins when the gate closes, or others keep something paused. Before that the program acts on its signals
// itself. The caller holds the gate's lock.
func (p *Process) watchSignals() {
	if p.gate.signalsLeft != nil {
		return
	}
	hangup := hasTerminal()
	C.handlers_watch_ends(C.bool(hangup))
	left := make(chan struct{})
	p.gate.signalsLeft = left
	go func() { _ = goruntime.Run(func() error { p.awaitSignals(left, hangup); return nil }) }()
}

// leaveSignals ends what watchSignals began, unless there is another reason to watch. The caller holds the gate's lock.
func (p *Process) leaveSignals() {
	p.gate.lasting = p.gate.lasting && p.socket.Outside().Any() != ""
	if p.gate.signalsLeft != nil && !p.gate.closed && !p.gate.lasting {
		close(p.gate.signalsLeft)
		p.gate.signalsLeft = nil
		C.handlers_leave_ends()
	}
}

// hasTerminal reports whether the process is at the terminal that controls it. Elsewhere SIGHUP asks a program to read
// its files again. It opens nothing, because the program may close any descriptor.
func hasTerminal() bool {
	for descriptor := range 3 {
		if _, err := unix.IoctlGetInt(descriptor, unix.TIOCGSID); err == nil { // only of the controlling one
			return true
		}
	}
	return false
}

// stillClosed reports whether the gate is closed, as it was when the watch over signals began.
func (p *Process) stillClosed(left <-chan struct{}) bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	return p.gate.signalsLeft == left && p.gate.closed
}

// sleep reports whether signals are still watched after a time.
func sleep(left <-chan struct{}, duration time.Duration) bool {
	select {
	case <-left:
	case <-time.After(duration):
	}
	select {
	case <-left:
		return false
	default:
		return true
	}
}

func (p *Process) awaitSignals(left <-chan struct{}, hangup bool) {
	for sleep(left, signalLook) {
		if signal := C.handlers_end_came(); signal != 0 {
			p.answerSignal(unix.SignalName(unix.Signal(signal)), left)
		}
		p.gate.Lock()
		if p.leaveSignals(); p.gate.signalsLeft == left {
			C.handlers_watch_ends(C.bool(hangup)) // the next one
		}
		p.gate.Unlock()
	}
}

// answerSignal resumes the program, or makes its calls fail, and returns when the gate is open or refuses calls. From
// then on the program may itself resume what others keep paused, so a resume that waits for them goes on. answerSignal
// tries once more after the time is up, because the process may have been stopped for most of it. A try waits for memory
// until the gate is open.
func (p *Process) answerSignal(name string, left <-chan struct{}) {
	p.socket.Outside().Release()
	p.gate.Lock()
	p.leaveSignals()
	closed := p.gate.closed
	p.gate.Unlock()
	if !closed {
		goruntime.Log(name + " came while this program's memory is paused from outside, so its own resume no longer waits")
		return
	}
	goruntime.Log(name + " came while this program is paused, so it is being resumed, and can end")
	until := time.Now().Add(time.Duration(float64(C.region_config.signal_wait) * float64(time.Second)))
	for last := false; ; last = !time.Now().Before(until) {
		err := p.resumeForSignal(max(0, time.Until(until)), left)
		if !p.stillClosed(left) {
			p.socket.Outside().Resumed()
			return
		}
		if last {
			p.refuseCalls(name, err, left)
			return
		}
		if !sleep(left, max(0, min(signalTry, time.Until(until)))) {
			return
		}
	}
}

// resumeForSignal resumes what gated pauses have taken, without asking other processes for memory. Memory that the
// program has paused itself stays so.
func (p *Process) resumeForSignal(wait time.Duration, left <-chan struct{}) error {
	if bool(C.checkpoint_asked()) {
		if err := helped(func() C.int { return C.everything_restore(C.double(wait.Seconds())) }); err != nil {
			return err
		}
	}
	e := p.engine.Load()
	if e == nil {
		return nil
	}
	var settings C.struct_operation_settings
	C.operation_settings(&settings, C.control_environment.temporary)
	options := optionsOf(&settings)
	options.Tags, options.Wait, options.Cancel = e.Records().GatedTags(), wait, left
	_, err := p.resumeGated(e, options)
	return err
}

// refuseCalls makes the program's waiting calls fail until the gate opens.
func (p *Process) refuseCalls(name string, err error, left <-chan struct{}) {
	if err == nil {
		err = errors.New("a tms command, or a rank in another process, holds its threads")
	}
	p.gate.Lock()
	refuses := p.gate.signalsLeft == left && p.gate.closed
	if refuses {
		C.gate_refuse(true)
	}
	p.gate.Unlock()
	if refuses {
		goruntime.Log(fmt.Sprintf("after %s this program cannot be resumed within TMS_SIGNAL_WAIT: %v. Its CUDA calls "+
			"that wait fail with %d (illegal state) from now on, so that it can end; if it goes on, tms resume %d brings "+
			"its memory back", name, err, C.ERROR_ILLEGAL_STATE, os.Getpid()))
	}
}
