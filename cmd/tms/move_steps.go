package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"tms/internal/backoff"
	"tms/internal/checkpoint"
	"tms/internal/control"
	"tms/vmm/cuda"
)

// move moves a group of processes. Groups move one after another, so host memory holds one group's contents.
func (m *moving) move(ctx context.Context, pid int) outcome {
	m.turn.Lock()
	defer m.turn.Unlock()
	if r := m.known[pid]; r != nil {
		return ended(r.outcome, r.err)
	}
	j, err := m.gather(ctx, pid)
	defer j.close()
	if err == nil {
		err = m.moveAll(ctx, j)
	}
	m.know(j, err)
	return ended(m.known[pid].outcome, m.known[pid].err)
}

// ready completes or undoes what other commands have begun. out says whether all are paused with everything, and ends
// whether another command was killed in the middle of a move.
func (m *moving) ready(ctx context.Context, j *job) (out, ends bool, err error) {
	if err = j.each(m.movable); err != nil {
		return false, false, err
	}
	out = true
	for _, r := range j.ranks {
		ends, out = ends || r.halfway(), out && r.at == checkpoint.Checkpointed
	}
	if out {
		return out, ends, nil
	}
	return out, ends, j.each(func(r *jobRank) (err error) {
		if r.at == checkpoint.Running && !r.state.Stats.Everything {
			return nil
		}
		request := control.Request{Op: control.Resume, Everything: true}
		if err = (resuming{request: request}).resume(ctx, r.PID).failure(); err != nil {
			return err
		}
		r.state, err = r.Status(ctx, answerTime)
		return err
	})
}

// moveAll moves all of these processes, or none.
func (m *moving) moveAll(ctx context.Context, j *job) error {
	start := time.Now()
	out, ends, err := m.ready(ctx, j)
	if err == nil {
		err = m.routes(j)
	}
	if m.all && errors.Is(err, errElsewhere) || ends && errors.Is(err, errThere) {
		for _, r := range j.ranks {
			r.Note, r.err = r.err.Error(), nil
			if ends {
				r.Note = "another command was killed, and this one has ended its move; " + r.Note
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	part, done := time.Now(), moved{}
	passes := func(seconds *float64) {
		*seconds = time.Since(part).Seconds()
		part = time.Now()
	}
	back := control.Request{Op: control.Resume, Everything: true}
	go j.ranks[0].driver.Prepare()
	if !out {
		back = control.Request{Op: control.Undo} // resumes only what this pause takes
		if err = j.take(ctx, &m.steering, control.Move); err != nil {
			return err
		}
		passes(&done.Pause)
		if err = j.checkpoint(ctx); err != nil {
			return err
		}
		passes(&done.Checkpoint)
	}
	if err = j.each((*jobRank).restore); err != nil {
		return m.returned(j, err, out)
	}
	err = j.each(func(r *jobRank) error {
		_, err := giveBack(context.Background(), r.driver, r.PID, 0)
		return err
	})
	passes(&done.Restore)
	var paused []outcome
	for _, r := range j.ranks {
		paused = append(paused, r.outcome)
	}
	if err == nil {
		err = j.resume(back)
	}
	if err != nil && out {
		return j.each(func(r *jobRank) error { return r.notResumed(cmp.Or(r.err, err)) })
	} else if err != nil {
		return m.returned(j, err, false)
	}
	passes(&done.Resume)
	for i, r := range j.ranks {
		r.Seconds, r.WithoutContents, r.NCCL = time.Since(start).Seconds(), paused[i].WithoutContents,
			cmp.Or(r.NCCL, paused[i].NCCL)
		r.MovedBytes, r.DriverSeconds, r.Stays = paused[i].MovedBytes, 0, ""
		if len(r.way.legs) == 0 {
			r.Note = "it was paused while processes moved that share memory with it"
			continue
		}
		done := done
		done.Legs = r.way.legs
		for _, other := range j.ranks {
			if other != r {
				done.With = append(done.With, other.PID)
			}
		}
		r.Move = &done
	}
	return nil
}

// restore makes the driver give a checkpointed process back where it moves. It stays locked.
func (r *jobRank) restore() error {
	if len(r.way.legs) == 0 {
		return nil
	}
	err := restore(context.Background(), r.driver, r.PID, 0, r.way.there...)
	r.moved = err == nil
	return err
}

// resume makes all processes resume. A process that waits for another process's memory gives up soon, and is asked
// again after the locks are released. Otherwise it might wait for a process that has failed. A process that is short of
// memory keeps trying for as long as its resumes wait.
func (j *job) resume(request control.Request) error {
	soon, wait := request, 0.0
	for _, r := range j.ranks {
		wait = max(wait, r.state.ResumeWait)
	}
	if soon.Op == control.Undo {
		soon.Wait = leastTry.Seconds()
	} else if soon.Turn = true; wait > 0 {
		soon.Wait = time.Millisecond.Seconds() // the process then says that it waits, and all tries are one transition
	}
	until := time.Now().Add(control.Seconds(wait))
	left := j.ranks
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 250 * time.Millisecond}); ; {
		if soon.Turn && !time.Now().Before(until) {
			soon.Wait = 0 // the last try, so its failure is that of the whole wait
		}
		takeAgain(left, func() {
			_ = (&job{ranks: left}).each(func(r *jobRank) error { return r.do(context.Background(), r.Conn, soon) })
		})
		left = j.those(func(r *jobRank) bool { return short(r.err) })
		if len(left) == 0 || soon.Op == control.Undo || !retry.Sleep(until) {
			break
		}
	}
	late := &job{ranks: j.those(func(r *jobRank) bool { return code(r.err) == int(cuda.NotReady) })}
	for _, r := range late.ranks {
		r.err = nil
	}
	if err := j.failed(); err != nil {
		return err
	}
	return late.each(func(r *jobRank) error {
		before := r.outcome
		err := r.do(context.Background(), r.Conn, request)
		r.Bytes, r.Imported = r.Bytes+before.Bytes, r.Imported+before.Imported
		return err
	})
}

// notResumed adds to an error that a process, paused before, was moved and stays paused.
func (r *jobRank) notResumed(cause error) error {
	return fmt.Errorf("%w; it was moved %v, and tms resume %d tries again", cause, r.way.legs, r.PID)
}

// returned moves all processes back to where they were, if they cannot all go on where they went. It returns each
// process's outcome as an error. With out the processes were paused with everything before, and stay so.
func (m *moving) returned(j *job, cause error, out bool) error {
	causes := map[int]error{}
	for _, r := range j.ranks {
		causes[r.PID] = cmp.Or(r.err, cause)
	}
	err := j.each(m.takeAgain)
	if err == nil {
		err = j.each(func(r *jobRank) (err error) {
			if r.moved {
				err = restore(context.Background(), r.driver, r.PID, 0, r.way.back...)
				r.moved = err != nil
				if err == nil && out {
					err = r.checkpoint(context.Background())
				}
			}
			return err
		})
	}
	return j.undone(func(r *jobRank) (now string, cause error) {
		own := causes[r.PID]
		now = asBefore
		switch {
		case isLost(r.PID, own):
			return "", own
		case r.moved:
			own, now = fmt.Errorf("%w; it cannot go back either (%w)", own, cmp.Or(r.err, err)),
				fmt.Sprint("it goes on moved ", r.way.legs)
			if out {
				return "", r.notResumed(own)
			}
		case out:
			return "", fmt.Errorf("%w; it stays paused", own)
		}
		return now, own
	})
}

// takeAgain checkpoints a process again, whichever step of its return it has reached.
func (m *moving) takeAgain(r *jobRank) error {
	ctx := context.Background()
	at, err := r.driver.State(r.PID)
	if err != nil || at == checkpoint.Checkpointed {
		return err
	}
	state, err := r.Status(ctx, answerTime)
	if err == nil && !state.Stats.Everything {
		err = ask(ctx, r.Conn, m.pausing)
	}
	if err == nil && at == checkpoint.Running {
		err = r.driver.Lock(r.PID, control.Seconds(m.pausing.TimeoutSeconds()))
	}
	if err == nil {
		err = r.checkpoint(ctx)
	}
	return err
}
