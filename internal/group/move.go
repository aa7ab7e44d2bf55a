package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tms/internal/aid/backoff"
	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
	"tms/vmm/cuda"
)

// Move is one tms move.
type Move struct {
	PIDs     []int                // all processes that are named
	Job      bool                 // they are those of a job
	All      bool                 // they are all that listen, so those that use none of the GPUs stay
	Pause    control.SteerRequest // of everything
	From, To string
	Pairs    []string // OLD=NEW

	turn    sync.Mutex
	sharers map[int][]int    // that each of the processes has
	known   map[int]*Member  // the outcomes of earlier processes, or in a dry run what they would be
	taken   map[string]int64 // by UUID: what those will take, in a dry run
}

// NewMove returns a move that does not yet say which processes go where.
func NewMove(timeout time.Duration, force bool) *Move {
	return &Move{known: map[int]*Member{}, taken: map[string]int64{}, Pause: control.SteerRequest{Op: control.Pause,
		Everything: true, SaveAll: true, Force: force, Timeout: new(timeout.Seconds())}}
}

// Moved is what a move has done, for its outcome.
type Moved struct {
	Legs       Legs    `json:"gpus"`
	With       []int   `json:"with,omitempty"` // the processes that have moved with it, which share its times
	Pause      float64 `json:"pause_seconds"`
	Checkpoint float64 `json:"checkpoint_seconds"` // with the lock
	Restore    float64 `json:"restore_seconds"`    // with the unlock
	Resume     float64 `json:"resume_seconds"`
}

// Do moves a process with its group, unless the group has moved. Groups move one after another, so host memory holds
// the contents of one group.
func (v *Move) Do(ctx context.Context, pid int) Outcome {
	v.turn.Lock()
	defer v.turn.Unlock()
	if m := v.known[pid]; m != nil {
		return Ended(m.Outcome, m.err)
	}
	g, err := v.gather(ctx, pid) // even after an error, with the processes that were found
	if err == nil {
		err = v.moveAll(ctx, g)
	}
	v.know(g, err)
	g.Close()
	return Ended(v.known[pid].Outcome, v.known[pid].err)
}

// gather finds the processes that move with one: all of its job; else those that share memory with it, and with those.
func (v *Move) gather(ctx context.Context, pid int) (*Group, error) {
	if v.sharers == nil && len(v.PIDs) > 1 {
		v.sharers = map[int][]int{}
		for _, p := range fleet.Ask(AnswerTime, v.PIDs...) {
			for _, other := range p.Sharers { // only one of the two may know
				v.sharers[p.PID], v.sharers[other] = append(v.sharers[p.PID], other), append(v.sharers[other], p.PID)
			}
		}
	}
	pids := []int{pid}
	if v.Job {
		pids = v.PIDs
	}
	for i := 0; i < len(pids); i++ {
		pids = fleet.Distinct(append(pids, v.sharers[pids[i]]...))
	}
	g := &Group{request: v.Pause, moves: true, alone: len(pids) == 1}
	for _, pid := range pids {
		if slices.Contains(v.PIDs, pid) {
			g.Members = append(g.Members, &Member{Outcome: Outcome{PID: pid}})
		}
	}
	return g, g.each(func(m *Member) (err error) {
		if m.Conn, m.state, err = Reach(ctx, m.PID); err == nil {
			err = g.complete(m.state)
		}
		return err
	})
}

// complete refuses to move a process without one that shares its memory.
func (g *Group) complete(state control.ProcessState) error {
	for _, pid := range state.Sharers {
		if !slices.ContainsFunc(g.Members, func(m *Member) bool { return m.PID == pid }) {
			return cuda.Refuse(cuda.NotSupported, "it shares memory with process %d, which does not move along: name "+
				"that, too, or end it; all that share memory move together", pid)
		}
	}
	return nil
}

// ready completes or undoes what other commands have begun. out says whether all are paused with everything, and ends
// whether another command was killed in the middle of a move.
func (v *Move) ready(ctx context.Context, g *Group) (out, ends bool, err error) {
	if err = g.each(v.movable); err != nil {
		return false, false, err
	}
	out = true
	for _, m := range g.Members {
		ends, out = ends || m.halfway(), out && m.at == checkpoint.Checkpointed
	}
	if out {
		return out, ends, nil
	}
	return out, ends, g.each(func(m *Member) (err error) {
		if m.at == checkpoint.Running && !m.state.Stats.Everything {
			return nil
		}
		request := control.SteerRequest{Op: control.Resume, Everything: true}
		if err = (Resume{Request: request}).Do(ctx, m.PID).Err(); err != nil {
			return err
		}
		m.state, err = m.Status(ctx, AnswerTime)
		return err
	})
}

// movable finds the driver, and in which state it has the process. Errors: the driver's, and what the process says. A
// job may have nothing left of that once it is paused.
func (v *Move) movable(m *Member) (err error) {
	if m.driver, err = checkpoint.Open(); err == nil {
		err = m.driver.CanMove()
	}
	if err == nil {
		m.at, err = m.driver.State(m.PID)
	}
	if err == nil && m.at == checkpoint.Running {
		err = untried()
	}
	if err == nil && m.state.Stays != "" && !v.Job {
		err = cuda.Refuse(cuda.NotSupported, "%s",
			fleet.Renamed(readable.Printable(strings.TrimSuffix(m.state.Stays, withoutEverything))))
	}
	return err
}

// halfway reports whether a command was killed after the driver took the process, or before it resumed.
func (m *Member) halfway() bool {
	return m.at != checkpoint.Checkpointed && (m.at != checkpoint.Running || m.state.Stats.Everything)
}

// moveAll moves all of these processes, or none.
func (v *Move) moveAll(ctx context.Context, g *Group) error {
	start := time.Now()
	out, ends, err := v.ready(ctx, g)
	if err == nil {
		err = v.routes(g)
	}
	if v.All && errors.Is(err, errElsewhere) || ends && errors.Is(err, errThere) {
		for _, m := range g.Members {
			m.Note, m.err = m.err.Error(), nil
			if ends {
				m.Note = "another command was killed, and this one has ended its move; " + m.Note
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	part, done := time.Now(), Moved{}
	passes := func(seconds *float64) {
		*seconds = time.Since(part).Seconds()
		part = time.Now()
	}
	back := control.SteerRequest{Op: control.Resume, Everything: true}
	go g.Members[0].driver.Prepare()
	if !out {
		back = control.SteerRequest{Op: control.Undo} // resumes only what this pause takes
		if err = g.take(ctx, control.Move); err != nil {
			return err
		}
		passes(&done.Pause)
		if err = g.checkpoint(ctx); err != nil {
			return err
		}
		passes(&done.Checkpoint)
	}
	if err = g.each((*Member).restore); err != nil {
		return v.returned(g, err, out)
	}
	err = g.each(func(m *Member) error {
		_, err := giveBack(context.Background(), m.driver, m.PID, 0)
		return err
	})
	passes(&done.Restore)
	var paused []Outcome
	for _, m := range g.Members {
		paused = append(paused, m.Outcome)
	}
	if err == nil {
		err = g.resume(back)
	}
	if err != nil && out {
		return g.each(func(m *Member) error { return m.notResumed(cmp.Or(m.err, err)) })
	} else if err != nil {
		return v.returned(g, err, false)
	}
	passes(&done.Resume)
	for i, m := range g.Members {
		m.Seconds, m.WithoutContents, m.NCCL = time.Since(start).Seconds(), paused[i].WithoutContents,
			cmp.Or(m.NCCL, paused[i].NCCL)
		m.MovedBytes, m.DriverSeconds, m.Stays = paused[i].MovedBytes, 0, ""
		if len(m.way.legs) == 0 {
			m.Note = "it was paused while processes moved that share memory with it"
			continue
		}
		done := done
		done.Legs = m.way.legs
		for _, other := range g.Members {
			if other != m {
				done.With = append(done.With, other.PID)
			}
		}
		m.Move = &done
	}
	return nil
}

// mayMove refuses what only shows when a process has paused.
func (g *Group) mayMove(ctx context.Context, m *Member) (err error) {
	if m.state, err = m.Status(ctx, AnswerTime); err == nil && m.state.Stays != "" {
		err = cuda.Refuse(cuda.NotSupported, "%s", fleet.Renamed(readable.Printable(m.state.Stays)))
	}
	return cmp.Or(err, g.complete(m.state))
}

// restore makes the driver give a checkpointed process back where it moves. It stays locked.
func (m *Member) restore() error {
	if len(m.way.legs) == 0 {
		return nil
	}
	err := restore(context.Background(), m.driver, m.PID, 0, m.way.there...)
	m.moved = err == nil
	return err
}

// resume makes all processes resume. A process that waits for another process's memory gives up soon, and is asked
// again after the locks are released. Otherwise it might wait for a process that has failed. A process that is short of
// memory keeps trying for as long as its resumes wait.
func (g *Group) resume(request control.SteerRequest) error {
	soon, wait := request, 0.0
	for _, m := range g.Members {
		wait = max(wait, m.state.ResumeWait)
	}
	if soon.Op == control.Undo {
		soon.Wait = leastTry.Seconds()
	} else if soon.Turn = true; wait > 0 {
		soon.Wait = time.Millisecond.Seconds() // the process then says that it waits, and all tries are one transition
	}
	until := time.Now().Add(control.Seconds(wait))
	left := g.Members
	for retry := (backoff.Backoff{Next: 5 * time.Millisecond, Most: 250 * time.Millisecond}); ; {
		if soon.Turn && !time.Now().Before(until) {
			soon.Wait = 0 // the last try, so its failure is that of the whole wait
		}
		rest := &Group{Members: left}
		rest.Locked(func() {
			_ = rest.each(func(m *Member) error { return m.do(context.Background(), m.Conn, soon) })
		})
		left = g.those(func(m *Member) bool { return short(m.err) })
		if len(left) == 0 || soon.Op == control.Undo || !retry.Sleep(until) {
			break
		}
	}
	late := &Group{Members: g.those(func(m *Member) bool { return Code(m.err) == int(cuda.NotReady) })}
	for _, m := range late.Members {
		m.err = nil
	}
	if err := g.failed(); err != nil {
		return err
	}
	return late.each(func(m *Member) error {
		before := m.Outcome
		err := m.do(context.Background(), m.Conn, request)
		m.Bytes, m.Imported = m.Bytes+before.Bytes, m.Imported+before.Imported
		return err
	})
}

// notResumed adds to an error that a process, paused before, was moved and stays paused.
func (m *Member) notResumed(cause error) error {
	return fmt.Errorf("%w; it was moved %v, and tms resume %d tries again", cause, m.way.legs, m.PID)
}

// returned moves all processes back to where they were, if they cannot all go on where they went. It returns each
// process's outcome as an error. With out the processes were paused with everything before, and stay so.
func (v *Move) returned(g *Group, cause error, out bool) error {
	causes := map[int]error{}
	for _, m := range g.Members {
		causes[m.PID] = cmp.Or(m.err, cause)
	}
	err := g.each(v.takeAgain)
	if err == nil {
		err = g.each(func(m *Member) (err error) {
			if m.moved {
				err = restore(context.Background(), m.driver, m.PID, 0, m.way.back...)
				m.moved = err != nil
				if err == nil && out {
					err = m.checkpoint(context.Background())
				}
			}
			return err
		})
	}
	return g.undone(func(m *Member) (now string, cause error) {
		own := causes[m.PID]
		now = asBefore
		switch {
		case isLost(m.PID, own):
			return "", own
		case m.moved:
			own, now = fmt.Errorf("%w; it cannot go back either (%w)", own, cmp.Or(m.err, err)),
				fmt.Sprint("it goes on moved ", m.way.legs)
			if out {
				return "", m.notResumed(own)
			}
		case out:
			return "", fmt.Errorf("%w; it stays paused", own)
		}
		return now, own
	})
}

// takeAgain checkpoints a process again, whichever step of its return it has reached.
func (v *Move) takeAgain(m *Member) error {
	ctx := context.Background()
	at, err := m.driver.State(m.PID)
	if err != nil || at == checkpoint.Checkpointed {
		return err
	}
	state, err := m.Status(ctx, AnswerTime)
	if err == nil && !state.Stats.Everything {
		err = Ask(ctx, m.Conn, v.Pause)
	}
	if err == nil && at == checkpoint.Running {
		err = m.driver.Lock(m.PID, control.Seconds(v.Pause.TimeoutSeconds()))
	}
	if err == nil {
		err = m.checkpoint(ctx)
	}
	return err
}

// know notes the results of processes that move together.
func (v *Move) know(g *Group, err error) {
	for _, m := range g.Members {
		if err != nil && m.err == nil {
			m.err = fmt.Errorf("left as it was: %w", err)
		}
		if m.err != nil {
			m.Outcome = Outcome{PID: m.PID}
		}
		v.known[m.PID] = m
	}
}

// Begin begins a plan with where a process would go, and reports whether it would.
func (v *Move) Begin(made *Plan) bool {
	made.Op = control.Move
	if v.known[made.PID] == nil {
		g, err := v.gather(context.Background(), made.PID)
		if err == nil {
			err = g.each(func(m *Member) error {
				err := v.movable(m)
				if err == nil && m.halfway() {
					err = fmt.Errorf("another command has paused half of it; tms resume %d or the move itself ends that",
						m.PID)
				}
				return err
			})
		}
		if err == nil {
			err = v.routes(g)
		}
		for _, m := range g.Members {
			for _, leg := range m.way.legs {
				v.taken[leg.To] += int64(leg.Bytes)
				v.taken[leg.From] -= int64(leg.Bytes)
			}
		}
		v.know(g, err)
		g.Close()
	}
	m := v.known[made.PID]
	if v.All && errors.Is(m.err, errElsewhere) {
		return false
	}
	if made.Legs = m.way.legs; m.err != nil {
		made.Error = m.err.Error()
	}
	return m.err == nil
}
