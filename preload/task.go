package main

/*
#include "shim.h"
#include "region.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/preload/account"
	"tms/preload/goruntime"
	"tms/preload/record"
	"tms/vmm"
	"tms/vmm/backup"
	"tms/vmm/cuda"
	"tms/vmm/stats"
)

const (
	commandMost = 512                    // bytes of the command that a status has
	tryFor      = 250 * time.Millisecond // after which a resume that waits for memory checks whether it is withdrawn
)

// task is a request that changes something.
type task struct {
	client    *connection // nil: it has gone
	request   control.Request
	tag       *string     // nil: all
	withdrawn atomic.Bool // a wait for memory must end
	nccl      suspension
	recording int      // for a record: the one that it began, or ends
	lets      bool     // it ends a hold
	held      bool     // it began one
	tags      []string // that a pause took something of, or that an undo resumes
	resumed   []string // that it has resumed
}

// perform carries out a request. It runs on another thread.
func (t *task) perform() *control.Reply {
	start := time.Now()
	var reply control.Reply
	if t.lets && t.request.Op == control.Undo {
		letGo()
	}
	err := goruntime.Run(func() (err error) {
		switch t.request.Op {
		case control.Record:
			return t.record()
		case control.Align:
			reply.Alignment, err = t.align()
			return err
		}
		if err := t.everything(); err != nil {
			return err
		}
		e := engine.Load()
		if e != nil {
			reply.Bytes, err = t.carryOut(e, &reply)
		}
		if err == nil && t.request.Everything && t.request.Op == control.Pause {
			beginEverything()
			t.tags = append(t.tags, rights.Rest)
		}
		return err
	})
	if t.lets && t.request.Op == control.Pause { // the pause itself stopped the threads meanwhile
		letGo()
	}
	reply.Seconds, reply.NCCL, reply.Communicators = time.Since(start).Seconds(), t.nccl.outcome, t.nccl.apart
	if t.request.Op != control.Pause {
		reply.NCCL = awaitedNCCL()
	} else if t.request.NCCL != nil && err == nil {
		if stays := notCheckpointed(); stays != nil {
			reply.Stays = stays.Error()
		}
	}
	if reply.OK = err == nil; !reply.OK {
		reply.Code, reply.Error = cuda.Code(err), err.Error()
		var short *backup.Shortage
		if errors.As(err, &short) {
			reply.Host, reply.HostAvailable = short.Needed, short.Available
		}
	}
	return &reply
}

// tagsOf returns a request's tag, nil for all, as the engine's options have it.
func tagsOf(tag *string) []string {
	if tag == nil {
		return nil
	}
	return []string{*tag}
}

// more returns by how much a figure has grown over all tags.
func more(before, after stats.Stats, figure func(stats.Tag) uint64) uint64 {
	var sums [2]uint64
	for i, held := range []stats.Stats{before, after} {
		for _, d := range held.Devices {
			for _, tag := range d.Tags {
				sums[i] += figure(tag)
			}
		}
	}
	return sums[1] - min(sums[0], sums[1])
}

// carryOut does the engine's part, and notes in the reply what became of contents.
func (t *task) carryOut(e *vmm.Engine, reply *control.Reply) (bytes uint64, err error) {
	var operation C.struct_operation
	C.operation_settings(&operation, C.control_environment.temporary)
	options := optionsOf(&operation)
	options.Tags = tagsOf(t.tag)
	switch t.request.Op {
	case control.Resume:
		return t.resume(e, options)
	case control.Undo:
		return t.undo(e, options, t.tags)
	case control.Move:
		to := vmm.BackupHost
		if t.request.To == control.ToDisk {
			to = vmm.BackupDisk
		}
		return e.Move(options, to)
	default:
		before, imported, suspended := e.Recorded(), e.ImportedBytes(), nccl.suspended.Load()
		options.ToDisk, options.Discard = t.request.To == control.ToDisk, t.request.Discard
		bytes, err = t.pause(e, options, func() error {
			options := options
			_, err := t.undo(e, options, taken(before, e.Recorded(), t.tag))
			return err
		})
		after := e.Recorded()
		if bytes > 0 || e.ImportedBytes() < imported {
			t.tags = taken(before, after, t.tag)
		}
		reply.WithoutContents = more(before, after, func(tag stats.Tag) uint64 { return tag.WithoutContents })
		if options.ToDisk {
			reply.Moved = more(before, after, func(tag stats.Tag) uint64 { return tag.DiskBytes + tag.PauseDiskBytes })
		}
		if nccl.suspended.Load() && !suspended {
			t.tags = append(t.tags, rights.Rest)
		}
		return bytes, err
	}
}

// record begins a recording, or ends the one that the client began.
func (t *task) record() error {
	which := t.recording
	t.recording = 0
	if t.request.File == "" {
		return record.Stop(which)
	}
	err := record.Start(t.request.File)
	if err == nil {
		t.recording = int(C.trace_recording())
	}
	return err
}

// resume tries again while memory is short, until it is withdrawn.
func (t *task) resume(e *vmm.Engine, options vmm.Options) (uint64, error) {
	until := time.Now().Add(seconds(t.request.Wait))
	options.Importers = max(resumeWait, seconds(t.request.Wait))
	if t.withdrawn.Load() { // nobody waits for it, and the server tries again
		options.Importers = retryEvery
	}
	for {
		left := time.Until(until)
		options.Wait = max(0, min(left, tryFor))
		bytes, err := resumeGated(e, options)
		if !errors.Is(err, cuda.OutOfMemory) || left <= 0 || t.withdrawn.Load() {
			return bytes, err
		}
	}
}

// undo resumes each tag that it can: all at once if nothing else is paused.
func (t *task) undo(e *vmm.Engine, options vmm.Options, tags []string) (bytes uint64, err error) {
	did := func(failed error, tags ...string) {
		if failed == nil {
			t.resumed = append(t.resumed, tags...)
		} else if err == nil {
			err = failed
		}
	}
	if len(tags) > 0 && tags[0] == rights.Rest {
		if C.everything_asked() {
			C.everything_set_pending(false)
			if err := settleEverything(); err != nil {
				return 0, err
			}
		}
		did(ungate(e), rights.Rest)
		tags = tags[1:]
	}
	one := func(which []string, tags ...string) {
		options.Tags = which
		resumed, failed := t.resume(e, options)
		bytes += resumed
		did(failed, tags...)
	}
	others := func(name string) bool { return !slices.Contains(tags, name) }
	if len(tags) > 1 && !slices.ContainsFunc(tagsWith(e.Recorded(), pausedOf), others) {
		one(nil, tags...)
		return bytes, err
	}
	for _, tag := range tags {
		one([]string{tag}, tag)
	}
	return bytes, err
}

// taken lists the tags of which a pause of one tag, or of all (nil), has paused something. A tag that the program had
// paused before is not among them.
func taken(before, after stats.Stats, tag *string) (names []string) {
	if tag != nil {
		return tagsOf(tag)
	}
	was, active := tagsWith(before, pausedOf), tagsWith(before, activeOf)
	return slices.DeleteFunc(tagsWith(after, pausedOf), func(name string) bool {
		return slices.Contains(was, name) && !slices.Contains(active, name)
	})
}

func pausedOf(t stats.Tag) uint64 { return t.PausedBytes + t.ImportedPaused }
func activeOf(t stats.Tag) uint64 { return t.PhysicalBytes + t.ImportedBytes }

// tagsWith lists the tags with any such bytes.
func tagsWith(held stats.Stats, bytes func(stats.Tag) uint64) (names []string) {
	for _, d := range held.Devices {
		for _, t := range d.Tags {
			if bytes(t) > 0 {
				names = append(names, stats.TagName(t.Tag))
			}
		}
	}
	return names
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// pause stops the program's threads meanwhile if it can; a forced pause goes on even if it cannot stop all. undo
// resumes what the pause took.
func (t *task) pause(e *vmm.Engine, options vmm.Options, undo func() error) (uint64, error) {
	request := &t.request
	force := request.Force || bool(C.region_config.pause_force)
	words := C.gate_unusable()
	if words == nil {
		how := gating{hold: request.Hold, force: force, idle: seconds(request.IdleSeconds())}
		if request.Everything || request.NCCL != nil {
			t.nccl.together = request.NCCL
			how.nccl = &t.nccl
		}
		if request.Everything {
			how.undo = undo
		}
		bytes, err := pauseGated(e, options, seconds(request.TimeoutSeconds()), how)
		t.held = err == nil && request.Hold
		return bytes, err
	}
	if request.Hold && force { // the caller knows that no thread need be stopped
		return 0, nil
	}
	if !force || request.Idle != nil { // without a gate nothing shows whether the program has work
		return 0, cuda.Refuse(cuda.NotSupported, "%s; or force the pause, while it is known that the program does "+
			"nothing on the device", C.GoString(words))
	}
	if request.Everything {
		polling.Do(func() { goruntime.Log(mustNotPoll) })
	}
	return pauseUngated(e, options, force)
}

// mustNotPoll is logged once in a program that has no gate.
const mustNotPoll = "everything of this process is paused while nothing holds its threads. The driver's checkpoint " +
	"kills a process with a thread that asks whether the device is done (cuStreamQuery, cuEventSynchronize and their " +
	"kind, as NCCL's watchdog and JAX do), so none may ask until the resume; in a program that was started by tms " +
	"run such threads wait"

var polling sync.Once

// ask has another thread make the status. It reads the command anew, which the process may have changed (setproctitle).
func (s *server) ask() {
	state := control.ProcessState{PID: unix.Getpid(), Command: command()}
	if s.running != nil {
		state.Doing = s.running.request.Op
	}
	goruntime.Hand(func() { s.status.Store(statusOf(state)) })
}

// statusOf completes a status. It runs on another thread.
func statusOf(state control.ProcessState) *control.Reply {
	reply := control.Reply{OK: true}
	err := goruntime.Run(func() (err error) {
		askingDriver.RLock()
		defer askingDriver.RUnlock()
		if state.Gated = C.gate_unusable() == nil; state.Gated {
			idle := idleFor().Seconds()
			state.HeldUp, state.IdleSeconds = bool(C.gate_is_shut()), &idle
		}
		state.Stats.Version, state.Stats.Devices = C.GoString(C.tms_version()), []stats.Device{}
		if e := engine.Load(); e != nil {
			if err = goruntime.Room(); err == nil {
				state.Stats, err = statsOf(e, C.control_environment.temporary)
			}
		}
		var asked *cuda.Driver
		if engine.Load() != nil && !C.everything_asked() { // else there is no driver, or its calls would wait
			asked = driver
		}
		state.Devices = account.Devices(asked)
		state.Account = account.Of(asked, state.Devices)
		if err == nil {
			reply.Process, err = json.Marshal(state)
		}
		return err
	})
	if err != nil {
		return &control.Reply{Code: cuda.Code(err), Error: err.Error()}
	}
	return &reply
}

func command() string {
	text, _ := os.ReadFile("/proc/thread-self/cmdline")
	text = text[:min(len(text), commandMost)]
	arguments := strings.ReplaceAll(strings.TrimRight(string(text), "\x00"), "\x00", " ")
	return strings.ToValidUTF8(arguments, "\uFFFD")
}
