package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/backoff"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/machine/checkpoint"
	"tms/vmm/cuda"
)

// parkTime is how long a process may take until it has nothing else to do.
const parkTime = 5 * time.Second

// Park pauses all members with everything, and parks them, so that CRIU can dump them. A restored process says
// that user keeps its pause. After an error all members are as before. GoOn ends it, and so does the end of this
// command, or its silence for the time of lease: the processes go on, or wait for a resume where the driver has them.
func (g *Group) Park(ctx context.Context, request control.SteerRequest, user string, lease time.Duration) error {
	g.request = request
	g.request.Op, g.request.Everything, g.parks = control.Pause, true, true
	if err := g.Connect(ctx); err != nil {
		return err
	}
	if err := g.each(func(m *Member) error { return m.mayPark(ctx) }); err != nil {
		return err
	}
	if g.alone {
		m := g.Members[0]
		driver, done, err := findDriver(m.PID)
		if err == nil && done {
			err = fmt.Errorf("everything of it is paused already: tms resume %d first", m.PID)
		} else if errors.Is(err, checkpoint.ErrNoCUDA) {
			err = nil // it has NVML alone, or no file of the driver
		}
		if m.driver = driver; err != nil {
			return err
		}
	}
	if err := g.take(ctx, control.Pause); err != nil {
		return err
	}
	if request.To != "" && g.alone { // what had been paused before
		refused, err := g.moveContents(ctx, request.To)
		if err != nil {
			return err
		} else if refused != nil {
			return g.takeBack(refused)
		}
	}
	if err := g.takeRest(ctx); err != nil {
		return err
	}
	for _, m := range g.Members {
		if m.Stays != "" {
			return g.undo(fmt.Errorf("process %d cannot be in a snapshot: %s", m.PID, m.Stays))
		}
	}
	if err := g.each(func(m *Member) error { return m.park(ctx, user, lease) }); err != nil {
		if left := g.GoOn(); left != nil {
			err = fmt.Errorf("%w; %w", err, left)
		}
		return err
	}
	return nil
}

// mayPark refuses a process that cannot be restored.
func (m *Member) mayPark(ctx context.Context) error {
	_, err := m.contents(ctx)
	if Code(err) == int(cuda.InvalidValue) {
		return errors.New("its libtms.so is of an earlier version, which a snapshot would not bring back; start it with this " +
			"version")
	}
	return err
}

// Contents is a file of contents that a parked process holds.
type Contents struct {
	Number uint64
	Bytes  int64
	File   *os.File // a copy of the descriptor
}

// ofSets lists the numbers by which a process holds parts of sets, and not contents.
func ofSets(kept []control.KeptSet) map[uint64]bool {
	numbers := map[uint64]bool{}
	for _, s := range kept {
		numbers[s.ID] = true
		for _, chunk := range s.Chunks {
			numbers[chunk.ID] = true
		}
	}
	return numbers
}

// park takes copies of what a process holds, and parks it as soon as it has nothing else to do.
func (m *Member) park(ctx context.Context, user string, lease time.Duration) error {
	held, err := m.contents(ctx)
	if err == nil {
		var state control.ProcessState
		state, err = m.Status(ctx, AnswerTime)
		m.Kept, m.Parts = state.Kept, map[uint64]*os.File{}
	}
	ofSets := ofSets(m.Kept)
	for _, one := range held {
		var file *os.File
		if err == nil {
			file, err = m.Lend(ctx, one.Number)
		}
		if err == nil && ofSets[one.Number] {
			m.Parts[one.Number] = file
		} else if err == nil {
			m.Contents = append(m.Contents, Contents{one.Number, int64(one.Bytes), file})
		}
	}
	if err != nil {
		return err
	}
	until := time.Now().Add(parkTime)
	for retry := (backoff.Backoff{Next: time.Millisecond, Most: 50 * time.Millisecond}); ; {
		err := Ask(ctx, m.Conn, control.SteerRequest{Op: control.Park, User: user, Lease: lease.Seconds()})
		if Code(err) != int(cuda.NotReady) || !retry.Sleep(until) {
			return err
		}
	}
}

// contents lists what the process's thread holds.
func (m *Member) contents(ctx context.Context) ([]control.Held, error) {
	reply, err := m.Do(ctx, control.SteerRequest{Op: control.Contents})
	return reply.Contents, Failure(reply, err)
}

// Parked returns an error if a member is no longer parked, for instance because this command was silent for too long. The
// members may be stopped.
func (g *Group) Parked() error {
	for _, m := range g.Members {
		if m.Ended() {
			return fmt.Errorf("process %d has gone on before all of it was dumped: this command was stopped for too long", m.PID)
		}
	}
	return nil
}

// goesOnAlone reports whether the process is no longer parked, and so takes back by itself what was paused.
func (m *Member) goesOnAlone() bool { return m.Ended() && unix.Kill(m.PID, 0) != unix.ESRCH }

// GoOn ends what Park has begun.
func (g *Group) GoOn() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	unlocked := g.each(func(m *Member) error {
		if _, err := m.Status(ctx, undoTime); err != nil && !m.goesOnAlone() { // any request ends a park
			return err
		}
		if m.driver == nil {
			return nil
		}
		if _, err := giveBack(ctx, m.driver, m.PID, 0); err != nil {
			return fmt.Errorf("the driver does not give it back (%w); tms resume %d tries again", err, m.PID)
		}
		return nil
	})
	g.undoLocked(ctx, func(m *Member, reply control.Reply, err error) error {
		if err = Failure(reply, err); err != nil && m.err == nil && m.goesOnAlone() {
			return nil
		} else if err != nil && m.err == nil && !errors.Is(err, client.ErrUnreachable) {
			return fmt.Errorf("it cannot be resumed (%w), and tries again by itself", err)
		}
		return cmp.Or(m.err, err)
	})
	return cmp.Or(unlocked, g.failed())
}
