package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"tms/internal/checkpoint"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/readable"
	"tms/vmm/cuda"
)

// A process is paused over its socket, then by the driver where everything is to go, and resumed the other way round.
// This command keeps no record: the driver knows its part and the process its own, so a resume goes on from wherever a
// pause has ended. The pause is kept only when all of it is complete: if this command ends earlier, the process undoes
// its part as soon as the driver lets it.

// driverTime is how long the driver may take for a checkpoint or a restore: it copies what remains of a process.
const driverTime = 2 * time.Minute

// undoTime is how long a process may take to resume after a pause that could not be completed.
const undoTime = 10 * time.Minute

const otherwise = "; without --everything, what is pausable can be paused"

// pausing is what each process is asked.
type pausing struct {
	request control.Request
	to      string // where contents go afterwards, or "" if they stay
}

func (p pausing) say(o outcome) string {
	text := o.nothing("pause")
	if o.changed() {
		text = fmt.Sprintf("paused, %s in %.2f s", o.bytes("freed", "unmapped"), o.Seconds) +
			without(", ", o.WithoutContents)
	}
	if o.MovedBytes > 0 {
		text += fmt.Sprintf("; %s moved to %s", readable.Bytes(o.MovedBytes), p.to)
	}
	if o.NCCL != "" {
		text += "; " + o.NCCL
	}
	if o.Stays != "" {
		text += "; the rest stays: " + o.Stays
	}
	if o.DriverSeconds > 0 {
		text += fmt.Sprintf("; the rest by the driver in %.2f s", o.DriverSeconds)
	}
	return text
}

func (p pausing) pause(ctx context.Context, pid int) outcome {
	r := &jobRank{outcome: outcome{PID: pid}}
	err := r.pause(ctx, p)
	return ended(r.outcome, err)
}

// pause makes one process pause, which need not stop together with others.
func (r *jobRank) pause(ctx context.Context, p pausing) (err error) {
	if r.Conn, err = client.Dial(r.PID); err != nil { // asks whose number this is, before the driver gets it
		return err
	}
	defer r.Close()
	if p.request.Everything {
		var done bool
		if r.driver, done, err = free(r.PID); err != nil || done {
			return err
		}
	}
	if r.state, err = r.Status(ctx, answerTime); errors.Is(err, client.ErrUnreachable) {
		return err
	}
	if err = r.do(ctx, r.Conn, p.request); err != nil {
		return err
	}
	if p.to != "" {
		var reply control.Reply
		if reply, err = r.Do(ctx, control.Request{Op: control.Move, Tag: p.request.Tag, To: p.to,
			Everything: p.request.Everything}); err != nil { // the connection is gone, so the process undoes the pause
			return err
		}
		r.MovedBytes += reply.Bytes
		if err = failure(reply, nil); err != nil && r.driver == nil {
			err = fmt.Errorf("paused, but its contents were not moved: %w", err)
		}
	}
	if err == nil && r.driver != nil {
		start := time.Now()
		if err = r.driver.Lock(r.PID, control.Seconds(p.request.TimeoutSeconds())); err == nil {
			err = r.checkpoint(ctx)
		}
		r.DriverSeconds = time.Since(start).Seconds()
	}
	if err == nil || r.driver == nil {
		err = cmp.Or(ask(context.WithoutCancel(ctx), r.Conn, control.Request{Op: control.Keep}), err)
	}
	if err != nil && r.driver != nil {
		err = r.undone(err, asBefore)
	}
	return err
}

// free returns the driver if it can checkpoint a process, and whether the process is checkpointed already.
func free(pid int) (driver *checkpoint.Driver, done bool, err error) {
	var state checkpoint.State
	if driver, err = checkpoint.Open(); err == nil {
		state, err = driver.State(pid)
	}
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("%w%s", err, otherwise)
	case state != checkpoint.Running && state != checkpoint.Checkpointed:
		return nil, false, fmt.Errorf("the driver has it %v already; tms resume %d lets it go on", state, pid)
	}
	if err = untried(); err != nil && state == checkpoint.Running {
		return nil, false, fmt.Errorf("%w%s", err, otherwise)
	}
	return driver, state == checkpoint.Checkpointed, nil
}

// checkpoint makes the driver checkpoint a process that is locked.
func (r *jobRank) checkpoint(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.take(); err != nil {
		return err
	}
	state, err := r.driver.State(r.PID)
	if err == nil && state != checkpoint.Checkpointed {
		err = fmt.Errorf("the driver has it %v after a checkpoint that it did not refuse", state)
	}
	return cmp.Or(err, ctx.Err())
}

const asBefore = "it goes on as before"

// undone takes back everything that was done, and says what came of that: now is what is then so.
func (r *jobRank) undone(cause error, now string) error {
	alone := &job{ranks: []*jobRank{r}}
	return alone.undone(func(*jobRank) (string, error) { return now, cause })
}

// undone takes back everything that was done to ranks, and notes in each what came of that. how returns what is
// then so ("": it is left as it is), and why. Errors: that of the first rank that has one.
func (j *job) undone(how func(*jobRank) (now string, cause error)) error {
	cause, now := map[*jobRank]error{}, map[*jobRank]string{}
	for _, r := range j.ranks {
		now[r], cause[r] = how(r)
	}
	ended := j.each(func(r *jobRank) error {
		if now[r] == "" {
			return cause[r]
		}
		return r.unlocked(cause[r])
	})
	paused := &job{ranks: j.those(func(r *jobRank) bool { return r.err == nil })}
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	paused.undoInTurn(ctx, func(r *jobRank, reply control.Reply, err error) error {
		if err = failure(reply, err); err != nil {
			return fmt.Errorf("%w; it stays paused without the driver's part, because it cannot be resumed (%w); tms "+
				"resume %d tries again", undoneBecause(cause[r]), err, r.PID)
		}
		return fmt.Errorf("%w; %s", undoneBecause(cause[r]), now[r])
	})
	return cmp.Or(ended, j.failed())
}

// unlocked makes the driver let a process go on, as part of an undo. Errors: what is so if the undo ends with that.
func (r *jobRank) unlocked(cause error) error {
	if cause = undoneBecause(cause); isLost(r.PID, cause) {
		return cause
	}
	if state, err := r.driver.State(r.PID); err == nil && state == checkpoint.Failed {
		return lose(r.PID, cause, nil)
	}
	_, err := giveBack(context.Background(), r.driver, r.PID, 0)
	switch {
	case errors.Is(err, checkpoint.ErrNoCUDA):
		return cause // it has ended
	case isLost(r.PID, err):
		return fmt.Errorf("%w; %w", cause, err)
	case err != nil:
		return fmt.Errorf("%w; the driver cannot unlock it either (%w), so its CUDA calls wait; tms resume %d tries "+
			"again", cause, err, r.PID)
	}
	return nil
}

// undoneBecause is a cause in words for users.
func undoneBecause(cause error) error {
	if errors.Is(cause, context.Canceled) {
		return errors.New("interrupted")
	}
	return cause
}

// giveBack makes the driver let a process run again, from any state, and reports whether there was anything to do. It
// waits for memory that is short, as restore does. Of two clients that do this at once, each does what is left.
func giveBack(ctx context.Context, driver *checkpoint.Driver, pid int, wait time.Duration) (did bool, err error) {
	late := time.Now().Add(max(0, wait) + driverTime)
	for tries := 0; tries < 10; {
		state, err := driver.State(pid)
		if err != nil {
			return did, err
		}
		switch state {
		case checkpoint.Running:
			return did, nil
		case checkpoint.Locked:
			err = driver.Unlock(pid)
		case checkpoint.Checkpointed:
			err = restore(ctx, driver, pid, wait)
		case checkpoint.Failed:
			return did, lose(pid, errors.New("a checkpoint failed"), nil)
		default: // on its way
			if time.Now().After(late) {
				return did, fmt.Errorf("%w: the driver has it %v", checkpoint.ErrLate, state)
			}
			time.Sleep(retryTime)
		}
		did = true
		switch {
		case errors.Is(err, cuda.IllegalState): // another process was first
			tries++
		case err != nil:
			return did, err
		}
	}
	return did, errors.New("another client has the driver lock it again and again")
}

const retryTime = 50 * time.Millisecond

// resuming is what each process is asked.
type resuming struct {
	request    control.Request
	driverOnly bool
	carried    bool // what has begun goes on when the command is interrupted
}

// resume makes the driver give a process back, if the driver has it, and then makes the process resume. Without a
// driver here resume still asks the process, which knows whether something is left that only a driver can undo.
func (r resuming) resume(ctx context.Context, pid int) outcome {
	o := outcome{PID: pid}
	process, unreachable := client.Dial(pid) // asks whose number this is, before the driver gets it
	if unreachable == nil {
		defer process.Close()
	} else if errors.Is(unreachable, client.ErrElsewhere) && !r.driverOnly {
		return ended(o, unreachable)
	}
	driver, err := checkpoint.Open()
	if err == nil {
		start := time.Now()
		var did bool
		wait := control.Seconds(r.request.Wait)
		if wait == 0 && !r.driverOnly {
			wait = asTheProcessSays
		}
		if did, err = giveBack(ctx, driver, pid, wait); short(err) {
			err = fmt.Errorf("%w; it stays paused, and nothing is lost: pause or end what has the memory (tms ps --bytes, "+
				"nvidia-smi), or give --wait", err)
		}
		if did {
			o.DriverSeconds = time.Since(start).Seconds()
		}
		r.request.Everything = err == nil || errors.Is(err, checkpoint.ErrNoCUDA)
	}
	unknown := errors.Is(err, checkpoint.ErrUnsupported) || errors.Is(err, checkpoint.ErrNoCUDA)
	if r.driverOnly || err != nil && !unknown {
		return ended(o, err)
	}
	if unreachable != nil {
		return ended(o, unreachable)
	}
	state, err := process.Status(ctx, answerTime)
	if errors.Is(err, client.ErrUnreachable) {
		return ended(o, err)
	}
	carried := ctx
	if r.carried {
		carried = context.WithoutCancel(ctx)
	}
	err = o.resumeInTurn(ctx, carried, process, r.request, state)
	return ended(o, err)
}

// refusal is a process's answer that it refuses.
type refusal struct {
	words               string
	code                int
	host, hostAvailable uint64 // for lack of host memory
}

// waysOut names what a user can do when host memory does not suffice for contents.
const waysOut = "tms pause --to disk writes contents to files, --discard gives them up, --tag pauses a part; " +
	"tms run --backup disk or peer has them wait elsewhere"

func (r *refusal) Error() string { return r.words }

func failure(reply control.Reply, err error) error {
	if err == nil && !reply.OK {
		refused := &refusal{reply.Error, reply.Code, reply.Host, reply.HostAvailable}
		if refused.host > 0 {
			refused.words += " (" + waysOut + ")"
		}
		return refused
	}
	return err
}

// ask sends a request, and returns only a refusal.
func ask(ctx context.Context, process *client.Conn, request control.Request) error {
	return failure(process.Do(ctx, request))
}

// ended returns the outcome with an error, or without one.
func ended(o outcome, err error) outcome {
	if err == nil {
		o.OK = true
		return o
	}
	o.OK, o.Error, o.Code = false, err.Error(), code(err)
	o.unreachable = errors.Is(err, client.ErrUnreachable)
	o.Lost = isLost(o.PID, err)
	if refused, ok := errors.AsType[*refusal](err); ok {
		o.Host, o.HostAvailable = refused.host, refused.hostAvailable
	}
	if errors.Is(err, context.Canceled) {
		o.Error = "interrupted: what had not begun is withdrawn, and a pause that had is undone"
	}
	return o
}

// code returns the number of an error, a cudaError_t.
func code(err error) int {
	var refused *refusal
	known := cuda.Code(err)
	switch {
	case errors.As(err, &refused):
		return refused.code
	case errors.As(err, new(*lost)):
		return int(cuda.IllegalState)
	case errors.Is(err, checkpoint.ErrLate):
		return int(cuda.Timeout)
	case errors.Is(err, checkpoint.ErrUnsupported):
		return int(cuda.NotSupported)
	case known == int(cuda.Unknown):
		return int(cuda.OperatingSystem)
	}
	return known
}
