package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/machine/checkpoint"
	"tms/vmm/cuda"
)

// Resume is what each process is asked.
type Resume struct {
	Request    control.SteerRequest
	DriverOnly bool // the process does the rest itself
	Pairs      []checkpoint.Pair
	carried    bool // the transaction goes on when the command is interrupted
}

// Do makes the driver give a process back, if the driver has it, and then makes the process resume. Without a
// driver here Do still asks the process, which knows whether something is left that only a driver can undo.
func (r Resume) Do(ctx context.Context, pid int) Outcome {
	o := Outcome{PID: pid}
	process, unreachable := client.Dial(pid) // asks whose number this is, before the driver gets it
	if unreachable == nil {
		defer process.Close()
	} else if !r.DriverOnly && (errors.Is(unreachable, client.ErrElsewhere) || errors.Is(unreachable, client.ErrOthers)) {
		return Ended(o, unreachable)
	}
	driver, err := checkpoint.Open()
	if err == nil {
		start := time.Now()
		var did bool
		wait := control.Seconds(r.Request.Wait)
		if wait == 0 && !r.DriverOnly {
			wait = asTheProcessSays
		}
		if did, err = giveBack(ctx, driver, pid, wait, r.Pairs...); short(err) {
			err = fmt.Errorf("%w; it stays paused, and nothing is lost: pause or end what has the memory (tms ps --bytes, "+
				"nvidia-smi), or give --wait", err)
		}
		if did {
			o.DriverSeconds = time.Since(start).Seconds()
		}
		r.Request.Everything = err == nil || errors.Is(err, checkpoint.ErrNoCUDA)
	}
	unknown := errors.Is(err, checkpoint.ErrUnsupported) || errors.Is(err, checkpoint.ErrNoCUDA)
	if r.DriverOnly || err != nil && !unknown {
		return Ended(o, err)
	}
	if unreachable != nil {
		return Ended(o, unreachable)
	}
	state, err := process.Status(ctx, AnswerTime)
	if errors.Is(err, client.ErrUnreachable) {
		return Ended(o, err)
	}
	carried := ctx
	if r.carried {
		carried = context.WithoutCancel(ctx)
	}
	err = o.resumeLocked(ctx, carried, process, r.Request, state)
	return Ended(o, err)
}

// resumeLocked sends a process a resume, again and again while memory is short, each time under the locks of the
// devices: so no restore finds the memory gone that it has seen free. carried is the context of a try that has begun.
func (o *Outcome) resumeLocked(ctx, carried context.Context, process *client.Conn, request control.SteerRequest,
	state control.ProcessState) error {
	need := needed{}
	for d, tag := range state.Tags() {
		if tag.PausedBytes > 0 {
			need[d.UUID] += tag.PausedBytes
		}
	}
	wait := request.Wait
	if wait == 0 {
		wait = state.ResumeWait
	}
	until := time.Now().Add(control.Seconds(wait))
	atOnce := request
	atOnce.Turn, atOnce.Wait = true, 0
	if wait > 0 {
		atOnce.Wait = time.Millisecond.Seconds() // the process then says that it waits, and all tries are one transition
	}
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 250 * time.Millisecond}); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		unlock, err := LockDevices(ctx, need.devices())
		if err != nil {
			return err
		}
		if !time.Now().Before(until) {
			atOnce.Wait = 0 // the last try, so its failure is that of the whole wait
		}
		err = o.doWhileRunning(carried, process, atOnce)
		unlock()
		if Code(err) == int(cuda.NotReady) { // waiting for other processes' memory takes none of this device's
			before := *o
			err = o.do(carried, process, request)
			o.Bytes, o.Imported = o.Bytes+before.Bytes, o.Imported+before.Imported
		}
		if !short(err) || !retry.Sleep(until) {
			return err
		}
	}
}
