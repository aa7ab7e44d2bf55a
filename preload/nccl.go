package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/preload/goruntime"
	"tms/vmm"
	"tms/vmm/cuda"
)

// A pause of everything also gives back what NCCL holds for its communicators, where NCCL can do that. Memory that is
// registered with NCCL is not paused. libtms_reach.so sees both (gate/reach/nccl.h).

// nccl is the state of suspended communicators, which are resumed before the gate opens.
type nccl struct {
	oneChange sync.Mutex // the thread that suspends or resumes has it; others do not wait for it in Lock
	suspended atomic.Bool
	awaited   atomic.Bool  // it is being resumed, and ranks in other processes are not yet
	warned    atomic.Bool  // of what NCCL may have registered
	resuming  atomic.Int32 // resumes in progress, which will see to it
}

// suspension has the parameters and the results of a pause that suspends NCCL.
type suspension struct {
	together *control.NCCL // the ranks that other processes pause now; may be nil
	apart    []control.Communicator
	outcome  string // what became of NCCL's memory
}

const (
	ncclDrains  = time.Second      // for threads to come out of NCCL
	ncclResumes = 30 * time.Second // for all communicators
	ncclMeets   = 5 * time.Second  // for ranks in other processes, before this resume stops waiting for theirs
)

// ncclVersion returns a version as NCCL writes it. (NCCL_VERSION)
func ncclVersion(code C.int) string {
	if code < 10000 {
		return fmt.Sprintf("NCCL %d.%d.%d", code/1000, code/100%10, code%100)
	}
	return fmt.Sprintf("NCCL %d.%d.%d", code/10000, code/100%100, code%100)
}

// eachCommunicator calls look with each. With ask it also asks NCCL about each, while no thread may call NCCL.
func eachCommunicator(ask bool, look func(*C.struct_gate_communicator)) {
	var cursor C.size_t
	var c C.struct_gate_communicator
	for C.nccl_look(&cursor, C.bool(ask), &c) {
		look(&c)
	}
}

// communicators counts those for which is returns true, without calling NCCL.
func communicators(is func(*C.struct_gate_communicator) bool) (count int) {
	eachCommunicator(false, func(c *C.struct_gate_communicator) {
		if is(c) {
			count++
		}
	})
	return count
}

func anyOf(*C.struct_gate_communicator) bool          { return true }
func isSuspended(c *C.struct_gate_communicator) bool  { return bool(c.suspended) }
func isLost(c *C.struct_gate_communicator) bool       { return bool(c.lost) }
func isUnfinished(c *C.struct_gate_communicator) bool { return bool(c.busy) }
func isSpread(c *C.struct_gate_communicator) bool     { return c.ranks > 1 && c.here != c.ranks }
func isAwaited(c *C.struct_gate_communicator) bool    { return isUnfinished(c) && isSpread(c) }
func hasFailed(c *C.struct_gate_communicator) bool    { return c.code != 0 && !bool(c.lost) }

// stopNCCL keeps threads out of NCCL, and reports whether it could: there is an NCCL, and no thread is inside. The gate
// is still open, so that threads inside come out. It tries for a moment only, because it cannot know what they wait
// for.
func stopNCCL(deadline time.Time) bool {
	if communicators(anyOf) == 0 {
		return false
	}
	C.nccl_stop(true)
	if until := time.Now().Add(ncclDrains); until.Before(deadline) {
		deadline = until
	}
	if poll(deadline, func() bool { return !bool(C.nccl_is_used()) }) {
		return true
	}
	C.nccl_stop(false)
	return false
}

// apartNCCL names the communicators that can be suspended here if they are suspended in other processes, too. Call it
// while no thread is inside NCCL.
func apartNCCL() (found []control.Communicator) {
	eachCommunicator(true, func(c *C.struct_gate_communicator) {
		name := cliqueName(c.clique)
		if bool(c.apart) && !slices.ContainsFunc(found, func(f control.Communicator) bool { return f.Name == name }) {
			found = append(found, control.Communicator{Name: name, Ranks: int(c.ranks), Here: int(c.here)})
		}
	})
	return found
}

func cliqueName(clique C.uint64_t) string { return strconv.FormatUint(uint64(clique), 16) }

// suspendNCCL makes NCCL give its memory back while no thread is inside and the devices are idle. A communicator that
// NCCL refuses to suspend stays as it was. Errors: cuda.Timeout.
func (p *Process) suspendNCCL(deadline time.Time, timeout time.Duration, together *control.NCCL) error {
	if !poll(deadline, p.nccl.oneChange.TryLock) {
		return late("NCCL is being resumed, and that has not ended within %v", timeout)
	}
	C.nccl_together(0)
	if together != nil {
		// A client that has given up must not find NCCL suspended later.
		if len(together.Together) > 0 && together.Wait() == 0 {
			p.nccl.oneChange.Unlock()
			return late("the other ranks do not wait any more for this one")
		}
		for _, name := range together.Together {
			if clique, err := strconv.ParseUint(name, 16, 64); err == nil && clique != 0 {
				C.nccl_together(C.uint64_t(clique))
			}
		}
	}
	failed := communicators(hasFailed)
	p.nccl.suspended.Store(true)
	begun := bool(C.nccl_begin(true))
	settled := begun && poll(deadline, func() bool { return !bool(C.nccl_is_busy()) })
	unfinished, awaited := communicators(isUnfinished), communicators(isAwaited)
	if begun && !settled {
		C.nccl_give_up()
	}
	p.nccl.oneChange.Unlock()
	switch {
	case begun && !settled:
		failed := p.resumeNCCL()
		words := fmt.Sprintf("ncclCommSuspend has not come back within %v for %s of NCCL, which may be of no use now; "+
			"all else is as before, and the program runs on", timeout, counted(unfinished))
		if awaited > 0 {
			words += fmt.Sprintf(" (%d of them with ranks in other processes, one of which has ended, or does not "+
				"run)", awaited)
		}
		if failed != nil {
			words += "; " + failed.Error()
		}
		return cuda.Refuse(cuda.Timeout, "%s", words)
	case communicators(isSuspended) == 0 || communicators(hasFailed) > failed:
		return p.resumeNCCL()
	}
	return nil
}

func counted(communicators int) string {
	if communicators == 1 {
		return "1 communicator"
	}
	return fmt.Sprintf("%d communicators", communicators)
}

// resumeNCCL makes NCCL take its memory again, before the gate opens. NCCL needs the ranks in other processes: if they
// are not resumed soon, resumeNCCL returns, and the gate stays closed until they are. Errors: cuda.Refusal, after which
// it is not tried again.
func (p *Process) resumeNCCL() error {
	deadline := time.Now().Add(ncclResumes)
	if !p.nccl.suspended.Load() {
		return nil
	}
	awaited := false
	if !poll(deadline, func() bool { awaited = p.nccl.awaited.Load(); return awaited || p.nccl.oneChange.TryLock() }) {
		return cuda.Refuse(cuda.Timeout, "NCCL is being resumed already, and that has not ended within %v", ncclResumes)
	}
	if awaited {
		return nil
	}
	defer func() {
		if !awaited {
			p.nccl.oneChange.Unlock()
		}
	}()
	if !p.nccl.suspended.Load() {
		return nil
	}
	lost := communicators(isLost)
	var err error
	if awaited, err = takeAgain(deadline, lost); awaited {
		goruntime.Log(ncclWaits)
		p.nccl.awaited.Store(true)
		go p.awaitNCCL(lost) // which has the turn now
		return nil
	}
	p.nccl.suspended.Store(false)
	return err
}

// takeAgain resumes all suspended communicators; lost is how many failed to resume before. It reports whether ranks in
// other processes are not resumed yet. Errors: cuda.Refusal.
func takeAgain(deadline time.Time, lost int) (awaited bool, err error) {
	if !bool(C.nccl_begin(false)) {
		return false, cuda.Refuse(cuda.OperatingSystem, "there are no threads to resume %s of NCCL%s",
			counted(communicators(isSuspended)), useless)
	}
	if communicators(isAwaited) > 0 {
		deadline = time.Now().Add(ncclMeets)
	}
	if !poll(deadline, func() bool { return !bool(C.nccl_is_busy()) }) {
		if communicators(isAwaited) > 0 {
			return true, nil
		}
		unfinished := communicators(isUnfinished)
		C.nccl_give_up()
		return false, cuda.Refuse(cuda.Timeout, "ncclCommResume has not come back within %v for %s of NCCL%s",
			ncclResumes, counted(unfinished), useless)
	}
	return false, lostNCCL(lost)
}

const useless = ", which can be used no more; all else is resumed"

func lostNCCL(before int) error {
	if now := communicators(isLost); now > before {
		return cuda.Refuse(cuda.NotSupported, "ncclCommResume has failed for %s of NCCL%s", counted(now-before),
			useless)
	}
	return nil
}

const ncclWaits = "NCCL takes its memory again when the other processes with ranks of its communicators are resumed, " +
	"too: threads that give the device work wait until then; if one of those processes has ended, end this one"

// awaitNCCL finishes on another thread what resumeNCCL has begun, and takes over its turn.
func (p *Process) awaitNCCL(lost int) {
	err := goruntime.Run(func() error {
		for bool(C.nccl_is_busy()) {
			time.Sleep(10 * time.Millisecond)
		}
		return lostNCCL(lost)
	})
	if err != nil {
		goruntime.Log(err.Error())
	}
	p.nccl.suspended.Store(false)
	p.nccl.awaited.Store(false)
	p.nccl.oneChange.Unlock()
	p.openGate()
}

// resumeNCCLLater calls resumeNCCL on its own goroutine, for a caller that may not wait.
func (p *Process) resumeNCCLLater() {
	if err := goruntime.Run(p.resumeNCCL); err != nil {
		goruntime.Log(err.Error())
	}
	p.openGate()
}

// tellNCCL returns what became of NCCL's memory in a pause of everything, or "" without NCCL.
func tellNCCL(stopped bool) string {
	type kind struct{ version, stays string }
	var kinds []kind // in the order in which they were found
	counts, sizes := map[kind]int{}, map[kind]uint64{}
	eachCommunicator(stopped, func(c *C.struct_gate_communicator) {
		k := kind{version: ncclVersion(c.version)}
		switch {
		case isLost(c) || isUnfinished(c):
			k.stays = "suspended before, and not resumed since"
		case c.obstacle != nil:
			k.stays = C.GoString(c.obstacle)
		case !isSuspended(c) && !stopped:
			k.stays = "threads of the program are inside NCCL"
		case !isSuspended(c):
			k.stays = "no threads to suspend it with, or another rank has failed"
		}
		if counts[k] == 0 {
			kinds = append(kinds, k)
		}
		counts[k]++
		if k.stays == "" {
			sizes[k] += uint64(c.suspendable)
		} else {
			sizes[k] += uint64(c.total)
		}
	})
	var words []string
	for _, k := range kinds {
		what := counted(counts[k])
		if sizes[k] > 0 {
			what += " with " + readable.Bytes(sizes[k])
		}
		if k.stays == "" {
			words = append(words, fmt.Sprintf("%s: %s suspended", k.version, what))
		} else {
			words = append(words, fmt.Sprintf("%s: %s left to the driver (%s)", k.version, what, k.stays))
		}
	}
	return strings.Join(words, "; ")
}

// ncclShares returns a hint for errors, or "" without NCCL. The hint says that NCCL shares memory between ranks, and
// when it gives the memory back.
func ncclShares() (words string) {
	var together string
	eachCommunicator(false, func(c *C.struct_gate_communicator) {
		if c.apart {
			together = ", until it is suspended in all of them at once, as by tms pause --job ID --everything"
		}
		words = fmt.Sprintf(" (%s shares memory between ranks on one host%s)", ncclVersion(c.version), together)
	})
	return words
}

// refuseRegistered returns an error if a pause of a tag, nil for all, would take memory that is registered with NCCL, a
// network card or GPUDirect Storage: those would go on using the old physical memory after a resume. It warns of memory
// that NCCL may have registered.
func (p *Process) refuseRegistered(e *vmm.Engine, tags []string) error {
	if bool(C.ipc_shares()) && bool(C.nccl_is_unseen()) && p.nccl.warned.CompareAndSwap(false, true) {
		goruntime.Log("TMS_SHAREABLE is set, and libtms_reach.so is not preloaded, so NCCL may have registered " +
			"memory that CUDA graphs use: after this pause their collectives are wrong. Set NCCL_GRAPH_REGISTER=0 " +
			"before the start, or start the program with tms run")
	}
	var cursor C.size_t
	var r C.struct_gate_registration
	for C.nccl_look_at_memory(&cursor, &r) {
		with := ncclVersion(r.version)
		if r.with != nil {
			with = C.GoString(r.with)
		}
		switch {
		case uint64(r.size) == math.MaxUint64:
			return cuda.Refuse(cuda.NotSupported, "more pausable memory was registered with %s by %s than there is "+
				"room to note, and a registration does not survive a pause: register fewer and larger pieces, or "+
				"exclude the memory from what is pausable (TMS_PAUSE_FORCE=1 pauses anyway)", with, C.GoString(r.call))
		case r.undone_by == nil && p.nccl.warned.Load(), !e.Records().Holds(tags, uintptr(r.address), uint64(r.size)):
		case r.undone_by == nil:
			p.nccl.warned.Store(true)
			goruntime.Log(fmt.Sprintf("%s used the memory at %#x in a CUDA graph, by %s, and has perhaps registered "+
				"it there, which does not survive a pause: that graph may hang. Set NCCL_GRAPH_REGISTER=0 before the "+
				"start, or capture it again after a resume",
				ncclVersion(r.version), uintptr(r.address), C.GoString(r.call)))
		default:
			return cuda.Refuse(cuda.NotSupported, "the memory at %#x is registered with %s by %s, and a registration "+
				"does not survive a pause: call %s first, or exclude the memory from what is pausable "+
				"(TMS_PAUSE_FORCE=1 pauses anyway)",
				uintptr(r.address), with, C.GoString(r.call), C.GoString(r.undone_by))
		}
	}
	return nil
}
