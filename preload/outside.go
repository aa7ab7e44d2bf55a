package main

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"time"

	"tms/internal/control"
	"tms/preload/goruntime"
	"tms/vmm"
)

// The program's own resume, and what others keep paused: such a resume waits for them, as CUDA calls wait at the gate
// (docs/design/control.md).

// resumeOperation resumes, and has other processes make room.
type resumeOperation struct {
	options vmm.Options
	memory  float64 // seconds to wait for others, for memory, and for other processes; negative for the defaults
}

func (o *resumeOperation) run(p *Process, e *vmm.Engine) (bytes uint64, err error) {
	options := o.options
	options.Wait, options.Importers = memoryWait(), resumeWait
	if o.memory >= 0 {
		options.Wait = seconds(C.double(o.memory))
		options.Importers = options.Wait
	}
	options.Barred = p.socket.Outside().Covers
	err = p.awaitOthers(o.memory, func() error {
		more, err := p.resumeShared(e, options)
		bytes += more
		return err
	})
	return bytes, err
}

// awaitOperation waits until others keep nothing paused. It needs no engine: the driver may have the process.
type awaitOperation struct{ within float64 } // seconds, negative for as long as it takes

func (o *awaitOperation) run(p *Process, _ *vmm.Engine) (uint64, error) {
	return 0, p.awaitOthers(o.within, func() error {
		part := p.checkpoint.driver.Load()
		if who := p.socket.Outside().Any(); who != "" && (part == nil || part.Lost == "") {
			return fmt.Errorf("%w: %s", vmm.ErrBarred, who)
		}
		return nil
	})
}

// awaitOthers tries until others do not keep paused what the try is for, or until the seconds are over, unless they are
// negative. A signal that asks the program to end ends the wait for others, too: see answerSignal.
func (p *Process) awaitOthers(within float64, try func() error) error {
	var late <-chan time.Time
	if within >= 0 {
		late = time.After(seconds(C.double(within)))
	}
	for {
		changed := p.socket.Outside().Changed()
		err := try()
		if err == nil {
			p.socket.Outside().Resumed()
		}
		if !errors.Is(err, vmm.ErrBarred) {
			return err
		}
		p.tellWaits(err)
		p.watchLasting()
		select {
		case <-changed:
		case <-late:
			return fmt.Errorf("%w; tms resume %d ends that", err, os.Getpid())
		}
	}
}

// tellWaits says once for each pause that the program's own resume waits.
func (p *Process) tellWaits(err error) {
	words := fmt.Sprintf("the program's own resume waits: %v; tms resume %d ends that", err, os.Getpid())
	if before := p.waitsTold.Swap(&words); bool(C.region_config.pause_lines) && (before == nil || *before != words) {
		goruntime.Log(words)
	}
}

// watchLasting begins to watch for signals that ask the program to end: its own resume may wait for others.
func (p *Process) watchLasting() {
	p.gate.Lock()
	defer p.gate.Unlock()
	p.gate.lasting = true
	p.watchSignals()
}

// Lasts tells a user at the terminal why the program stands still. LastsNoMore tells why it goes on.
func (p *Process) Lasts(by control.LastingPause) {
	p.Hand(func() error { p.watchLasting(); return nil }, func(error) {})
	stands := "its own resume waits until then"
	if bool(C.gate_is_closed()) {
		stands = "its threads wait before their next CUDA call. Ctrl-C resumes and interrupts it"
	}
	p.tellTerminal(fmt.Sprintf("this program is paused from outside by %s; tms resume %d continues it: %s", by.Words(),
		os.Getpid(), stands))
}

func (p *Process) LastsNoMore(why string) { p.tellTerminal(why + ": this program goes on") }

// tellTerminal writes a line if that reaches a user, and the program wants such lines (TMS_PAUSE_LINES).
func (p *Process) tellTerminal(line string) {
	go func() {
		if bool(C.region_config.pause_lines) && bool(C.error_on_terminal()) {
			goruntime.Log(line)
		}
	}()
}
