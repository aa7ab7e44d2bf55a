package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/machine/checkpoint"
	"tms/vmm/cuda"
)

// undoTime is how long a process may take to resume after a pause that could not be completed.
const undoTime = 10 * time.Minute

const asBefore = "it goes on as before"

// undo puts every rank back as it was, and returns the cause; a member that is not says so. It does all members at
// once, because NCCL's are resumed together.
func (g *Group) undo(cause error) error {
	own, paused := map[*Member]error{}, false
	for _, m := range g.Members {
		own[m], paused = m.err, paused || m.Changed()
	}
	did := func(m *Member, reply control.Reply, err error) error {
		own := own[m]
		if err = Failure(reply, err); err != nil && !errors.Is(err, client.ErrUnreachable) {
			own = fmt.Errorf("it cannot be resumed (%w) and tries again by itself; the other ranks are as before: %w",
				err, cause)
			if g.alone {
				own = fmt.Errorf("%w; what is paused cannot be resumed (%w), and the process tries again by itself", cause,
					err)
			}
		} else if err == nil && reply.NCCL != "" {
			own = fmt.Errorf("%w; %s", cmp.Or(own, cause), reply.NCCL)
		}
		m.Bytes, m.Imported, m.NCCL, m.Stays = 0, 0, "", ""
		return own
	}
	if paused {
		g.undoLocked(context.Background(), did)
		return cause
	}
	_ = g.each(func(m *Member) error { // it takes no memory, so it waits for no lock
		reply, err := m.Do(context.Background(), control.SteerRequest{Op: control.Undo})
		return did(m, reply, err)
	})
	return cause
}

// takeBack undoes a pause of everything, and returns the cause. Each member says how it is then.
func (g *Group) takeBack(cause error) error {
	_ = g.undone(func(m *Member) (string, error) {
		m.Bytes, m.Imported, m.NCCL = 0, 0, ""
		return asBefore, cmp.Or(m.err, cause)
	})
	return cause
}

// undone takes back everything that was done to members, and notes the result in each. how returns what is
// then so ("": it is left as it is), and why. Errors: that of the first member that has one.
func (g *Group) undone(how func(*Member) (now string, cause error)) error {
	cause, now := map[*Member]error{}, map[*Member]string{}
	for _, m := range g.Members {
		now[m], cause[m] = how(m)
	}
	ended := g.each(func(m *Member) error {
		if now[m] == "" {
			return cause[m]
		}
		return m.unlocked(cause[m])
	})
	paused := &Group{Members: g.those(func(m *Member) bool { return m.err == nil })}
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	paused.undoLocked(ctx, func(m *Member, reply control.Reply, err error) error {
		if err = Failure(reply, err); err != nil {
			return fmt.Errorf("%w; it stays paused without the driver's part, because it cannot be resumed (%w); tms "+
				"resume %d tries again", undoneBecause(cause[m]), err, m.PID)
		}
		return fmt.Errorf("%w; %s", undoneBecause(cause[m]), now[m])
	})
	return cmp.Or(ended, g.failed())
}

// unlocked makes the driver let a process go on, as part of an undo. Errors: what is so if the undo ends with that.
func (m *Member) unlocked(cause error) error {
	if cause = undoneBecause(cause); isLost(m.PID, cause) {
		return cause
	}
	if m.driver == nil { // it does not use CUDA
		return nil
	}
	if state, err := m.driver.State(m.PID); err == nil && state == checkpoint.Failed {
		return lose(m.PID, cause, nil)
	}
	_, err := giveBack(context.Background(), m.driver, m.PID, 0)
	switch {
	case errors.Is(err, checkpoint.ErrNoCUDA):
		return cause // it has ended
	case isLost(m.PID, err):
		return fmt.Errorf("%w; %w", cause, err)
	case err != nil:
		return fmt.Errorf("%w; the driver cannot unlock it either (%w), so its CUDA calls wait; tms resume %d tries "+
			"again", cause, err, m.PID)
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

// undoLocked sends members an undo, all at once. One that waits for the memory of another process gives up soon, and is
// asked again when it no longer has the locks. Those that the group has already end with that.
func (g *Group) undoLocked(ctx context.Context, did func(*Member, control.Reply, error) error) {
	undo := control.SteerRequest{Op: control.Undo, Wait: leastTry.Seconds()}
	var mutex sync.Mutex
	late := &Group{}
	(&Group{Members: g.those(func(m *Member) bool { return m.Conn != nil }), unlock: g.unlock}).Locked(func() {
		_ = g.each(func(m *Member) error {
			reply, err := m.Do(ctx, undo)
			if err == nil && reply.Code == int(cuda.NotReady) {
				mutex.Lock()
				defer mutex.Unlock()
				late.Members = append(late.Members, m)
				return nil
			}
			return did(m, reply, err)
		})
	})
	undo.Wait = 0
	_ = late.each(func(m *Member) error {
		reply, err := m.Do(ctx, undo)
		return did(m, reply, err)
	})
}
