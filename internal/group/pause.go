package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/machine/checkpoint"
	"tms/vmm/cuda"
)

// Pause pauses all members, or returns an error and leaves each as it was; each member has its own reason. Contents go
// to the place to afterwards, or stay where the request puts them if it is "".
func (g *Group) Pause(ctx context.Context, request control.SteerRequest, to string) error {
	defer g.Close()
	g.request = request

	// Connect, which tells whose numbers these are before the driver gets them. The driver refuses a lone process
	// before anything is paused; whether it can take the members of a job shows once they are paused.
	if !g.alone {
		if err := g.Connect(ctx); err != nil {
			return err
		}
	} else if done, err := g.reachAlone(ctx); err != nil || done {
		return err
	}

	// Pause what is pausable, of all members at one cut.
	if err := g.take(ctx, control.Pause); err != nil {
		return err
	}

	// Move the contents. A refusal leaves the process paused, unless the driver was to take the rest.
	var refused error
	if to != "" {
		var err error
		if refused, err = g.moveContents(ctx, to); err != nil { // the connection is gone, so the process undoes the pause
			return err
		} else if refused != nil && request.Everything {
			return g.takeBack(refused)
		}
	}

	// Have the driver take the rest.
	if request.Everything {
		if err := g.takeRest(ctx); err != nil {
			return err
		}
	}

	// Only now does the pause outlast this command.
	return cmp.Or(g.persist(), refused)
}

// reachAlone connects to a lone process, and refuses it if everything is to go and the driver cannot take it. done says
// that the driver has it already.
func (g *Group) reachAlone(ctx context.Context) (done bool, err error) {
	m := g.Members[0]
	if m.Conn, err = client.Dial(m.PID); err != nil {
		return false, err
	}
	if g.request.Everything {
		if m.driver, done, err = findDriver(m.PID); err != nil || done {
			return done, err
		}
	}
	if m.state, err = m.Status(ctx, AnswerTime); errors.Is(err, client.ErrUnreachable) {
		return false, err
	}
	return false, nil
}

// fits refuses a pause whose contents have no room in host memory.
func (g *Group) fits(op string) error {
	planning := NewPlanning(g.request.Tag, true)
	for _, m := range g.Members {
		made := Plan{PID: m.PID, Op: op, Legs: m.way.legs}
		if planning.plan(&made, m.state); made.Error != "" && !g.request.Discard {
			m.err = &Refusal{"with those of the job before it, " + made.Error, int(cuda.OperatingSystem),
				made.HostBytes, *made.HostAvailableBytes}
			return m.err
		}
	}
	return nil
}

// take pauses all members when all can be stopped at once. After an error all are as before.
func (g *Group) take(ctx context.Context, op string) error {
	pause := g.request
	if g.alone { // it refuses by itself what does not fit
		pause.Toward = g.Members[0].way.toward
		return g.each(func(m *Member) error { return m.do(ctx, m.Conn, pause) })
	}
	if err := g.fits(op); err != nil {
		return err
	}
	if err := g.stop(ctx); err != nil {
		return err
	}
	timeout := max(leastTry.Seconds(), g.request.TimeoutSeconds()) // there is nothing left to wait for
	pause.Timeout, pause.Everything = &timeout, false
	if g.request.Everything {
		pause.NCCL = g.together(timeout)
	}
	// A member whose NCCL is being suspended waits for the others: until that wait has ended, an interrupt withdraws
	// nothing.
	carried, withdraw := context.WithCancel(context.WithoutCancel(ctx))
	defer withdraw()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(pause.NCCL.Wait(), withdraw) })()
	err := g.each(func(m *Member) error {
		request := pause
		request.Toward = m.way.toward
		return m.do(carried, m.Conn, request)
	})
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return g.undo(err)
	}
	return nil
}

// moveContents has the paused processes move their contents. refused is why one does not, which changes nothing else.
func (g *Group) moveContents(ctx context.Context, to string) (refused, err error) {
	for _, m := range g.Members {
		reply, err := m.Do(ctx, control.SteerRequest{Op: control.Move, Tag: g.request.Tag, To: to,
			Everything: g.request.Everything})
		if err != nil {
			return nil, err
		}
		m.MovedBytes += reply.Bytes
		if err = Failure(reply, nil); err != nil && !g.request.Everything {
			err = fmt.Errorf("paused, but its contents were not moved: %w", err)
		}
		refused = cmp.Or(refused, err)
	}
	return refused, nil
}

// takeRest is checkpoint, if the driver can take each member; why it cannot is no error.
func (g *Group) takeRest(ctx context.Context) error {
	if g.alone {
		return g.checkpoint(ctx)
	}
	var why string
	for _, m := range g.Members {
		var err error
		if m.driver, _, err = findDriver(m.PID); err != nil && !(g.parks && errors.Is(err, checkpoint.ErrNoCUDA)) {
			m.Stays = err.Error()
		}
		if why == "" && m.Stays != "" {
			why = fmt.Sprintf("of process %d: %s", m.PID, strings.TrimSuffix(m.Stays, withoutEverything))
		}
	}
	if why != "" {
		for _, m := range g.Members {
			m.Stays = cmp.Or(strings.TrimSuffix(m.Stays, withoutEverything), "the driver takes all ranks or none, and "+why)
		}
		return nil
	}
	return g.checkpoint(ctx)
}

// keep makes a process keep the pause. A process of version 0.1 does not know whose pause that is, so its own resume
// ends it.
func (m *Member) keep(how Keep, until float64) error {
	keep := control.SteerRequest{Op: control.Keep, Own: how.Own, Lent: how.To, Until: until}
	if !how.Own {
		keep.User = cmp.Or(how.User, userName())
	}
	err := Ask(context.Background(), m.Conn, keep)
	switch {
	case Code(err) != int(cuda.InvalidValue):
		m.Until, m.To = keep.Until, keep.Lent
		return err
	case how.For > 0:
		return fmt.Errorf("its libtms.so is of an earlier version, which lends nothing (%w); it goes on as before", err)
	}
	return Ask(context.Background(), m.Conn, control.SteerRequest{Op: control.Keep})
}

// userName names the user of this command, also behind sudo, or returns "" if it is not known.
func userName() string {
	if name := os.Getenv("SUDO_USER"); os.Geteuid() == 0 && name != "" {
		return name
	}
	if found, err := user.Current(); err == nil {
		return found.Username
	}
	return ""
}

// persist makes the pause outlast this command, and ends a lend of all members at one moment. If a member has ended by
// now, the others are resumed.
func (g *Group) persist() error {
	var until float64
	if g.Keep.For > 0 {
		until = float64(time.Now().Add(g.Keep.For).UnixMicro()) / 1e6
	}
	err := g.each(func(m *Member) error { return m.keep(g.Keep, until) })
	switch {
	case err == nil:
		return nil
	case g.alone && g.Members[0].driver != nil:
		return g.takeBack(err)
	case g.alone:
		return err
	}
	_ = g.each(func(m *Member) error {
		if m.err != nil {
			return m.err
		}
		resume := Resume{Request: control.SteerRequest{Op: control.Resume, Tag: g.request.Tag}}
		if o := resume.Do(context.Background(), m.PID); !o.OK {
			return fmt.Errorf("it is paused, and cannot be resumed (%s): %w", o.Error, err)
		}
		return nil
	})
	return err
}
