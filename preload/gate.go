package main

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/backoff"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
)

// gate stops the program's threads at a safepoint: before their next call that gives a device work
// (gate/reach/gate.c). A gated pause closes it, and openGate opens it when nothing keeps it closed any more.
type gate struct {
	sync.Mutex // its holder changes the state, and never waits; it is taken after the engine's lock
	closed     bool

	// What keeps it closed, beside suspended communicators of NCCL.
	pausing    bool // a gated pause is in progress
	paused     bool // gated pauses keep something paused, as the engine has said last
	checkpoint bool // the gate stops calls that poll, too, for the driver's checkpoint
	stops      int  // clients that stop the program and have paused nothing yet (control.SteerRequest.Hold)

	worked   time.Time  // when a device was last seen to get work; zero if no look has found any
	onePause sync.Mutex // the gated pause in progress has it; others do not wait for it in Lock

	lasting     bool          // others keep something paused, for which a resume of the program's may wait
	signalsLeft chan struct{} // is closed when signals are no longer watched, and nil while they are not
	namespaces  namespaces
}

// notIdle is gating.idle of a pause that asks for no idle time.
const notIdle time.Duration = -1

// gating has what a gated pause is asked for besides the engine's options.
type gating struct {
	idle   time.Duration // the least time since a device last got work, or notIdle for any time
	stop   bool          // close the gate and pause nothing: control.SteerRequest.Hold
	alone  bool          // the caller stops no other process at the same moment, and does not try again
	yields bool          // stop allocations too: control.SteerRequest.Yield
	force  bool          // pause even where the gate cannot stop all work
	undo   func() error  // the driver's checkpoint comes next: stop polls at the end, or call this to resume
	other  func() error  // what is done in place of a pause
	nccl   *suspension   // asks to suspend NCCL first, where that is possible; may be nil
	takes  func(bool)    // is called just before memory is taken, and when that has failed; or nil
	before func()        // is called while no stream is captured, and the other calls still go on; or nil
}

// refuse returns the error of a gated pause that has changed nothing.
func refuse(code cuda.Result, format string, arguments ...any) error {
	return cuda.Refuse(code, "gated pause: %s; nothing has changed, and the program runs on",
		fmt.Sprintf(format, arguments...))
}

// badMoment is an error of a bad moment: see pauseGated.
type badMoment struct{ error }

func (b badMoment) Unwrap() error { return b.error }

func late(format string, arguments ...any) error {
	return badMoment{refuse(cuda.Timeout, format, arguments...)}
}

func unsupported(format string, arguments ...any) error {
	return refuse(cuda.NotSupported, format, arguments...)
}

// The first moment lasts an eighth of the timeout, and each later one twice as long: a kernel may take long.
const firstMoment = 8

// pauseGated pauses a program that goes on running, as tms.h describes for tms_pause_gated. A moment may be a bad one:
// a host callback waits for a thread at the gate, or another thread resets a device. The gate then opens and pauseGated
// tries another moment, unless the caller does that itself, NCCL takes part, or the pause has given memory back. Errors:
// those of Pause, cuda.Timeout, cuda.NotSupported, cuda.NotReady.
func (p *Process) pauseGated(e *vmm.Engine, options vmm.Options, timeout time.Duration,
	how gating) (freed uint64, err error) {
	options.Asked = time.Now()
	deadline := options.Asked.Add(timeout)
	once := how.stop && !how.alone || how.idle >= 0 || how.nccl != nil && communicators(anyOf) > 0
	for moment := timeout / firstMoment; ; moment *= 2 {
		left := time.Until(deadline)
		if once || moment <= 0 {
			moment = left
		}
		freed, err = p.pauseAtOnce(e, options, min(moment, left), timeout, how)
		bad := errors.As(err, new(badMoment)) || cuda.Gone(err)
		if left = time.Until(deadline); !bad || once || left <= 0 || freed > 0 {
			return freed, err
		}
		time.Sleep(min(left, time.Duration(1+rand.Int64N(int64(letRun)))))
	}
}

// letRun is the longest time that the program runs between two moments.
const letRun = 50 * time.Millisecond

// pauseAtOnce closes the gate, waits until no thread is past it and the devices are idle, and pauses. A failure opens
// the gate again, and counts as work for an idle pause. It runs on a thread of this library, and calls nothing of the
// program's but NCCL. Errors name timeout.
func (p *Process) pauseAtOnce(e *vmm.Engine, options vmm.Options, within, timeout time.Duration,
	how gating) (freed uint64, err error) {
	deadline := time.Now().Add(within)
	if words := C.gate_unusable(); words != nil {
		return 0, unsupported("%s", C.GoString(words))
	}
	if err := p.unstoppable(e); err != nil && !how.force {
		return 0, err
	}
	if err := p.refuseRegistered(e, options.Tags); err != nil && !how.force {
		return 0, unsupported("%v", err)
	}
	if err := p.beenIdle(how.idle); err != nil {
		return 0, err
	}
	if !poll(deadline, p.gate.onePause.TryLock) {
		return 0, late("another gated pause has not ended within %v", timeout)
	}
	defer p.gate.onePause.Unlock()
	p.gate.Lock()
	p.gate.pausing = true
	if how.idle >= 0 || how.yields {
		C.gate_stop_allocations() // others may have the memory by then
	}
	p.gate.Unlock()
	stays := false // closed
	defer func() {
		p.gate.Lock()
		if p.gate.pausing = false; stays {
			p.gate.stops++
		}
		if err != nil && how.idle >= 0 {
			p.gate.worked = time.Now()
		}
		p.gate.Unlock()
		if err != nil && !e.Records().Gated() {
			if failed := p.resumeNCCL(); failed != nil {
				err = fmt.Errorf("%w; %w", err, failed)
			}
		}
		if !p.nccl.suspended.Load() { // else the resume opens it
			p.openGate()
		}
	}()
	stopped := how.nccl != nil && stopNCCL(deadline)
	if how.stop && how.nccl != nil && !stopped && communicators(anyOf) > 0 {
		return 0, late("threads are inside NCCL, and have not come out")
	}
	if deadline, err = p.closeGate(deadline, timeout, how.before); err != nil {
		return 0, err
	}
	if err := p.beenIdle(how.idle); err != nil {
		return 0, err
	}
	if busy, err := e.AwaitIdle(deadline); busy >= 0 {
		return 0, blamed(busy, timeout)
	} else if err != nil {
		return 0, fmt.Errorf("gated pause: waiting for the devices: %w; nothing has changed", err)
	}
	if stays = how.stop; stays {
		if how.nccl != nil {
			how.nccl.apart = apartNCCL()
		}
		return 0, nil
	}
	if how.other != nil {
		return 0, how.other()
	}
	if stopped {
		if err := p.suspendNCCL(deadline, timeout, how.nccl.together); err != nil {
			return 0, err
		}
	}
	e.AwaitAllocations(deadline)
	options.Gated, options.Capturing = true, false
	options.Importers = max(0, min(options.Importers, time.Until(deadline)))
	if how.takes != nil {
		how.takes(true)
	}
	if freed, err = e.Pause(options); err != nil && how.takes != nil {
		how.takes(false)
	}
	if err == nil && how.nccl != nil {
		how.nccl.outcome = tellNCCL(stopped)
	}
	if err == nil && how.undo != nil {
		p.beginEverything() // or a resume by the program itself could let these calls go on before the checkpoint
		if err = p.stopPolls(deadline); err != nil {
			C.checkpoint_set(false)
			failed := how.undo()
			if failed == nil {
				freed = 0
			}
			return freed, errors.Join(err, failed)
		}
	}
	return freed, err
}

// stopPolls stops calls that poll, and returns when no thread is in one. Such calls do not wait for the driver's lock,
// and read pages that its checkpoint takes away. The engine makes none either until releasePolls.
func (p *Process) stopPolls(deadline time.Time) error {
	if err := p.setGate(C.GATE_CHECKPOINT); err != nil {
		return err
	}
	if soonest := time.Now().Add(time.Second); deadline.Before(soonest) { // the pause may have used up all of the time
		deadline = soonest
	}
	var user C.struct_gate_user
	if !poll(deadline, func() bool { return !bool(C.gate_inside(&user)) }) {
		inside := gateUser(user)
		return errors.Join(late("thread %s does not come back from %s, and the driver's checkpoint would kill the "+
			"process in there", inside.name(), inside.function()), p.setGate(C.GATE_CLOSED))
	}
	p.gate.Lock()
	p.gate.checkpoint = true
	p.gate.Unlock()
	return nil
}

// releasePolls lets calls that poll go on, once the driver has given the process back or will not take it.
func (p *Process) releasePolls() {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.gate.checkpoint {
		p.gate.checkpoint = false
		C.gate_set(C.GATE_CLOSED) // this lets more calls go on than before, which cannot fail
	}
}

// pauseUngated pauses a program that does nothing on the devices; with force, also memory that NCCL has registered.
func (p *Process) pauseUngated(e *vmm.Engine, options vmm.Options, force bool) (uint64, error) {
	if err := p.refuseRegistered(e, options.Tags); err != nil && !force {
		return 0, err
	}
	return e.Pause(options)
}

// idleFor returns the time since a look found that a thread had given a device work. Work since that look counts as of
// now.
func (p *Process) idleFor() time.Duration {
	p.gate.Lock()
	defer p.gate.Unlock()
	if bool(C.gate_has_worked()) || p.gate.worked.IsZero() {
		p.gate.worked = time.Now()
	}
	return time.Since(p.gate.worked)
}

// beenIdle returns an error if idleFor is shorter than idle.
func (p *Process) beenIdle(idle time.Duration) error {
	if idle <= 0 {
		return nil
	}
	if found := p.idleFor(); found < idle {
		return refuse(cuda.NotReady, "a device was given work %v ago, less than %v", found.Round(time.Millisecond),
			idle)
	}
	return nil
}

// resumeGated is Resume. As after any resume, the gate opens if nothing is left that a gated pause has paused.
func (p *Process) resumeGated(e *vmm.Engine, options vmm.Options) (bytes uint64, err error) {
	bytes, err = p.resumeMemory(e, options)
	if failed := p.ungate(e); err == nil {
		err = failed
	}
	return bytes, err
}

// resumeInTurn is resumeGated for a client that keeps all others from taking memory until it returns. NCCL's memory
// stays suspended if ranks in other processes must take it at the same moment. Errors: then also NotReady.
func (p *Process) resumeInTurn(e *vmm.Engine, options vmm.Options) (bytes uint64, err error) {
	if communicators(func(c *C.struct_gate_communicator) bool { return isSuspended(c) && isSpread(c) }) == 0 {
		return p.resumeGated(e, options)
	}
	if bytes, err = p.resumeMemory(e, options); err == nil {
		err = cuda.Refuse(cuda.NotReady, "NCCL takes its memory again with ranks in other processes")
	}
	return bytes, err
}

// resumeMemory does the engine's part.
func (p *Process) resumeMemory(e *vmm.Engine, options vmm.Options) (bytes uint64, err error) {
	if !C.checkpoint_asked() { // the process has already undone the driver's part
		p.releasePolls()
		p.findPlaces(e)
	}
	p.nccl.resuming.Add(1)
	bytes, err = e.Resume(options)
	p.nccl.resuming.Add(-1)
	return bytes, err
}

// LetGo ends one stop, on a thread other than the control socket's. The gate opens if nothing else keeps it closed. It
// also forgets what the program has said of live bytes: the pause that the stop was for is over, or will not come.
func (p *Process) LetGo() {
	_ = goruntime.Run(func() error {
		p.engine.Load().ForgetLive(nil)
		p.gate.Lock()
		p.gate.stops--
		p.gate.Unlock()
		p.openGate()
		return nil
	})
}

// ungate resumes NCCL and opens the gate, unless something is left that gated pauses have paused. Errors: of
// resumeNCCL.
func (p *Process) ungate(e *vmm.Engine) error {
	if e.Records().Gated() {
		return nil
	}
	err := p.resumeNCCL()
	p.openGate()
	return err
}

// openGate opens the gate unless something keeps it closed. It is the only function that does. Any thread of this
// library may call it, also with the engine's lock, because it decides under the gate's lock from what that lock
// guards. A caller first takes away its own reason to keep the gate closed.
//
// No caller asks the engine whether something is paused: the answer may be old, because another pause has ended since,
// and the gate would open over its memory. The engine says so itself, with its lock held and before the pause returns
// (Process.Gated). So from the closing to the resume, pausing or paused is set at every moment.
//
// A forked child has no thread that could open the gate, so its calls pass (is_child in gate/reach/gate.c). A signal's
// handler opens nothing: it leaves a note for awaitSignals, whose resume comes here.
func (p *Process) openGate() {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.gate.pausing || p.gate.paused || p.gate.checkpoint || p.gate.stops > 0 {
		return
	}
	if p.nccl.suspended.Load() {
		if p.nccl.resuming.Load() == 0 && !p.nccl.awaited.Load() {
			go p.resumeNCCLLater() // memory that is paused was freed
		}
		return
	}
	C.nccl_stop(false)
	if p.gate.closed {
		C.gate_set(C.GATE_OPEN)
		C.order_end()
		p.gate.closed = false
		p.leaveSignals()
	}
}

// setGate closes the gate, or changes which calls a closed gate stops.
func (p *Process) setGate(state C.enum_gate_state) error {
	p.gate.Lock()
	defer p.gate.Unlock()
	if errno := C.gate_set(state); errno != 0 {
		p.gate.closed = false
		p.leaveSignals()
		return unsupported("the kernel refuses membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED), without which threads "+
			"cannot be stopped: %v", unix.Errno(errno))
	}
	p.watchSignals()
	p.gate.closed = true
	return nil
}

// closeGate closes the gate, and waits until no thread is in a call that gives a device work and no stream is captured.
// It returns the deadline, later by the time that before took.
func (p *Process) closeGate(deadline time.Time, timeout time.Duration, before func()) (time.Time, error) {
	p.gate.Lock()
	closed := p.gate.closed // by an earlier gated pause
	p.gate.Unlock()
	for {
		if !closed {
			// A thread that captures a stream makes more calls to end the capture; no other may begin one.
			if err := p.setGate(C.GATE_NO_CAPTURES); err != nil {
				return deadline, err
			}
			if !poll(deadline, func() bool { return !beginsCapture() && !state().Capturing }) {
				return deadline, late("a stream is being captured into a CUDA graph, and that has not ended within %v",
					timeout)
			}
			if before != nil {
				begun := time.Now()
				before()
				deadline = deadline.Add(time.Since(begun))
			}
			if err := p.setGate(C.GATE_CLOSED); err != nil {
				return deadline, err
			}
		}
		// Also where it was closed: a resume in an order may have let threads in, and has failed since. NCCL takes
		// its own memory there, and may wait for processes that are still paused.
		var inside *gateUser
		if !poll(deadline, func() bool { inside = findInside(closed); return inside == nil }) {
			return deadline, late("thread %s has not come back from %s within %v", inside.name(), inside.function(),
				timeout)
		}
		// A thread that had passed the gate may have begun a capture since.
		if closed = closed || !state().Capturing; closed {
			return deadline, nil
		}
	}
}

// poll asks until the answer is yes, and reports whether that was before the deadline.
func poll(deadline time.Time, ready func() bool) bool {
	for wait := (backoff.Backoff{Next: 20 * time.Microsecond, Most: time.Millisecond}); !ready(); {
		if !wait.Sleep(deadline) {
			return false
		}
	}
	return true
}
