package main

// #include "shim.h"
import "C"

import (
	"errors"
	"slices"
	"sync"
	"time"

	"tms/internal/control"
	"tms/internal/control/rights"
	"tms/internal/control/server"
	"tms/preload/goruntime"
	"tms/preload/watch"
	"tms/vmm"
	"tms/vmm/cuda"
	"tms/vmm/stats"
	"tms/vmm/store"
)

// inTurn is how long a resume waits for other processes while its client keeps more from taking memory.
const inTurn = 100 * time.Millisecond

// task is a request of the socket that changes something, and its outcome.
type task struct {
	process *Process
	*server.Task
	*server.Outcome
	nccl suspension
}

func (p *Process) Perform(of *server.Task, outcome *server.Outcome) (err error) {
	t := &task{process: p, Task: of, Outcome: outcome}
	reply := &t.Reply
	switch t.Request.Op {
	case control.Record:
		err = t.record()
	case control.Align:
		reply.Alignment, err = t.align()
	case control.Advance:
		reply.Sets, err = t.advance()
	case control.Adopt:
		err = p.adopt(t.Request.Sets)
	default:
		if t.Request.Op == control.Pause {
			defer func() { t.forgetLive(err) }()
		}
		if t.isForSnapshot() {
			if err = t.setsStay(); err != nil {
				break
			}
		}
		awake := func() {}
		if t.Request.Everything && t.Request.Op == control.Pause {
			if awake, err = p.keepAsleep(control.Seconds(t.Request.TimeoutSeconds())); err != nil {
				break
			}
			awake = sync.OnceFunc(awake)
			defer awake()
		}
		if err = t.everything(); err != nil {
			break
		}
		if t.isForSnapshot() {
			if err = t.mayEndNVML(); err != nil {
				break
			}
		}
		e := p.engine.Load()
		if e == nil && t.isForSnapshot() && bool(C.listener_saw_cuda()) {
			e, err = p.start()
		}
		if e != nil {
			reply.Bytes, err = t.carryOut(e)
			if t.Tag != nil && err == nil && reply.Bytes == 0 {
				reply.Note = e.Records().Unknown(*t.Tag)
			}
			if err == nil && reply.Note == "" && t.Request.Op == control.Pause && t.tookNothing(e) {
				reply.Note = "it was paused already, and stays paused from now on, whatever the program does"
			}
		}
		if e == nil && err == nil {
			err = t.withoutEngine()
		}
		if err == nil && t.isForSnapshot() {
			err = t.endNVML()
		}
		if t.givesRestBack(err) { // with the gate open: NVML may need a lock that a thread has which waited there
			beginNVML()
		}
		if err == nil && t.Request.Everything && t.Request.Op == control.Pause {
			p.beginEverything()
		}
		if err == nil && t.Request.Op == control.Pause && (t.Request.Everything || t.isForSnapshot()) {
			t.Took = append(t.Took, rights.Rest)
		}
		if err == nil && t.isForSnapshot() { // no operation on a set begins by now, and those that wait are refused
			awake()
			err = t.setsStay()
		}
	}
	reply.NCCL, reply.Communicators = t.nccl.outcome, t.nccl.apart
	if t.Request.Op != control.Pause && p.nccl.awaited.Load() {
		reply.NCCL = ncclWaits
	} else if t.Request.Op == control.Pause && t.Request.NCCL != nil && err == nil {
		if stays := p.notCheckpointed(); stays != nil {
			reply.Stays = stays.Error()
		}
	}
	var short *store.Shortage
	if errors.As(err, &short) {
		reply.Host, reply.HostAvailable = short.Needed, short.Available
	}
	return err
}

// withoutEngine ends what a pause of everything has begun in a process that has no pausable memory.
func (t *task) withoutEngine() error {
	if t.Request.Op == control.Undo && bool(C.checkpoint_asked()) {
		C.checkpoint_set_pending(false)
		if err := t.process.settleEverything(); err != nil {
			return err
		}
	}
	t.Resumed, t.Active = t.Due, t.Request.Op == control.Resume
	return nil
}

// tookNothing reports whether a pause has found what it is for paused by the program.
func (t *task) tookNothing(e *vmm.Engine) bool {
	paused := tagsWith(e.Records().Recorded(), stats.Tag.AllPaused)
	asked := t.Tag == nil || slices.Contains(paused, *t.Tag)
	return !t.Request.Yield && !t.Request.Hold && len(t.Took) == 0 && len(paused) > 0 && asked &&
		t.process.socket.Outside().Alone()
}

// forgetLive ends what the program has said of live bytes, even where a pause was refused before the engine heard of
// it. A hold that succeeds is followed by a pause, or else by LetGo.
func (t *task) forgetLive(err error) {
	if e := t.process.engine.Load(); e != nil && (err != nil || !t.Request.Hold) {
		e.ForgetLive(tagsOf(t.Tag))
	}
}

// tagsOf returns a request's tag, nil for all, in the form of the engine's options.
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
func (t *task) carryOut(e *vmm.Engine) (bytes uint64, err error) {
	var settings C.struct_operation_settings
	C.operation_settings(&settings, C.control_environment.temporary)
	options := optionsOf(&settings)
	options.Tags = tagsOf(t.Tag)
	if !t.Withdrawn() { // otherwise other ranks wait for this pause
		options.Cancel = t.Cancel()
	}
	switch t.Request.Op {
	case control.Resume:
		mapped := e.ImportedBytes()
		bytes, err = t.resume(e, options)
		t.Active = err == nil && len(tagsWith(e.Records().Recorded(), stats.Tag.AllPaused)) == 0
		now := e.ImportedBytes()
		t.Reply.Imported = now - min(mapped, now)
		return bytes, err
	case control.Undo:
		options.Unseen = t.Request.Yield // its threads wait for their memory alone
		return t.undo(e, options, t.Due)
	case control.Move:
		if t.Request.To == control.ToHost {
			return e.Fetch(options)
		}
		options.ToMemory = t.Request.To == control.ToMemory
		return e.Spill(options)
	default:
		before, suspended := e.Records().Recorded(), t.process.nccl.suspended.Load()
		options.ToDisk, options.ToMemory = t.Request.To == control.ToDisk, t.Request.To == control.ToMemory
		options.Discard = t.Request.Discard
		options.SaveAll = t.Request.SaveAll
		options.Toward = t.Request.Toward
		options.InParts = t.Request.Parts
		took := map[string]bool{}
		options.Took = func(tag string) { took[tag] = true }
		bytes, err = t.pause(e, options, func() error {
			options := options
			_, err := t.undo(e, options, taken(took, e.Records().Recorded(), t.Tag))
			return err
		})
		after := e.Records().Recorded()
		t.Reply.Imported = more(after, before, func(tag stats.Tag) uint64 { return tag.ImportedBytes })
		if bytes > 0 || t.Reply.Imported > 0 {
			t.Took = taken(took, after, t.Tag)
		}
		if err != nil && e.Records().Gated() { // what still holds its memory does not count as paused
			t.Took = slices.DeleteFunc(tagsWith(before, stats.Tag.AllActive), func(name string) bool {
				return t.Tag != nil && name != *t.Tag
			})
		}
		t.Reply.WithoutContents = more(before, after, func(tag stats.Tag) uint64 { return tag.WithoutContents })
		if options.Toward != nil {
			t.Reply.Moved = more(before, after, func(tag stats.Tag) uint64 {
				return tag.BackupBytes - tag.HostBytes - tag.DiskBytes
			})
		}
		if options.ToDisk {
			toDisk := func(tag stats.Tag) uint64 { return tag.DiskBytes + tag.PauseDiskBytes }
			t.Reply.Moved = more(before, after, toDisk)
		}
		if t.process.nccl.suspended.Load() && !suspended {
			t.Took = append(t.Took, rights.Rest)
		}
		return bytes, err
	}
}

// record begins a recording, or ends the one that the client began.
func (t *task) record() error {
	if t.Request.File == "" {
		return watch.StopRecording(t.Task.Recording)
	}
	err := watch.StartRecording(t.Request.File)
	if err == nil {
		t.Outcome.Recording = int(C.recording_number())
	}
	return err
}

// resume waits for memory that is short until the task is withdrawn. A client that has the turn to take memory retries.
func (t *task) resume(e *vmm.Engine, options vmm.Options) (uint64, error) {
	if t.Request.Ahead != nil {
		return t.resumeAhead(e, options)
	}
	wait := control.Seconds(t.Request.Wait)
	options.Importers = max(resumeWait, wait)
	if t.Request.Op == control.Undo && wait > 0 {
		options.Importers, wait = wait, 0
	}
	resume := t.process.resumeGated
	if t.Request.Turn {
		options.Importers, resume = inTurn, t.process.resumeInTurn
		options.Retried, options.Asked = wait > 0, t.Asked
	} else if wait == 0 && t.Request.Op == control.Resume {
		wait = memoryWait()
	}
	if options.Wait = wait; t.Withdrawn() { // its client is gone, and the server tries again
		// It looks before it takes anything: a try that fails at its end takes memory from others for a moment.
		options.Wait, options.Retried = time.Millisecond, true
		options.Importers, options.Cancel = server.RetryEvery, nil
	}
	return resume(e, options)
}

// resumeAhead takes memory as it comes, and ends when its client says that all has come, or gives it up. A client that
// has gone gives it up.
func (t *task) resumeAhead(e *vmm.Engine, options vmm.Options) (uint64, error) {
	if t.Withdrawn() {
		return 0, cuda.Refuse(cuda.NotReady, "its client has given the resume up")
	}
	options.Coming = &vmm.Coming{All: t.Complete(), Leave: t.Request.Ahead}
	options.Importers, options.Cancel = inTurn, t.Cancel()
	return t.process.resumeInTurn(e, options)
}

// undo resumes each tag that it can: all at once if nothing else is paused, or with Ahead.
func (t *task) undo(e *vmm.Engine, options vmm.Options, tags []string) (bytes uint64, err error) {
	did := func(failed error, tags ...string) {
		if failed == nil {
			t.Resumed = append(t.Resumed, tags...)
		} else if err == nil {
			err = failed
		}
	}
	if len(tags) > 0 && tags[0] == rights.Rest {
		if C.checkpoint_asked() {
			C.checkpoint_set_pending(false)
			if err := t.process.settleEverything(); err != nil {
				return 0, err
			}
		}
		did(t.process.ungate(e), rights.Rest)
		tags = tags[1:]
	}
	one := func(which []string, tags ...string) {
		options.Tags = which
		resumed, failed := t.resume(e, options)
		bytes += resumed
		did(failed, tags...)
	}
	others := func(name string) bool { return !slices.Contains(tags, name) }
	if t.Request.Ahead != nil && len(tags) > 0 {
		one(tags, tags...)
		return bytes, err
	}
	if len(tags) > 1 && !slices.ContainsFunc(tagsWith(e.Records().Recorded(), stats.Tag.AllPaused), others) {
		one(nil, tags...)
		return bytes, err
	}
	for _, tag := range tags {
		one([]string{tag}, tag)
	}
	return bytes, err
}

// taken lists the tags of which a pause of one tag, or of all (nil), took memory that is still paused. What the program
// had paused before is not among them. What a resume brought back while the pause waited for its turn is.
func taken(took map[string]bool, after stats.Stats, tag *string) (names []string) {
	if tag != nil {
		return tagsOf(tag)
	}
	return slices.DeleteFunc(tagsWith(after, stats.Tag.AllPaused), func(name string) bool { return !took[name] })
}

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

// pause pauses, with the program's threads stopped if possible. A forced pause goes on even if it cannot stop them all.
// undo resumes what the pause took.
func (t *task) pause(e *vmm.Engine, options vmm.Options, undo func() error) (uint64, error) {
	request := &t.Request
	force := request.Force || bool(C.region_config.pause_force)
	words := C.gate_unusable()
	if words == nil {
		how := gating{stop: request.Hold, alone: request.Parts, force: force, idle: control.Seconds(request.IdleSeconds()),
			yields: request.Yield, takes: t.Takes}
		if request.Everything || request.NCCL != nil {
			t.nccl.together = request.NCCL
			how.nccl = &t.nccl
		}
		if request.Everything {
			how.undo = undo
		}
		timeout := control.Seconds(request.TimeoutSeconds())
		if how.idle < 0 && !how.yields { // else it would count as work, or a thread may wait for memory with the lock
			how.before = sync.OnceFunc(func() { emptyTorchCache(e, options, timeout) })
		}
		bytes, err := t.process.pauseGated(e, options, timeout, how)
		t.Held = err == nil && request.Hold
		return bytes, err
	}
	if request.Hold && force { // the caller knows that no thread need be stopped
		return 0, nil
	}
	if request.Idle != nil || request.Yield { // nothing shows whether the program has work, or waits
		return 0, cuda.Refuse(cuda.NotSupported, "%s", C.GoString(words))
	}
	if !force {
		return 0, cuda.Refuse(cuda.NotSupported, "%s; or force the pause, while it is known that the program does "+
			"nothing on the device", C.GoString(words))
	}
	if request.Everything {
		t.process.pollingNoted.Do(func() { goruntime.Log(mustNotPoll) })
	}
	t.Takes(true)
	return t.process.pauseUngated(e, options, force)
}

// mustNotPoll is logged once in a program that has no gate.
const mustNotPoll = "everything of this process is paused while nothing holds its threads. The driver's checkpoint " +
	"kills a process with a thread that asks whether the device is done (cuStreamQuery, cuEventSynchronize and their " +
	"kind, as NCCL's watchdog and JAX do), so none may ask until the resume; in a program that was started by tms " +
	"run such threads wait"
