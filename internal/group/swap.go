package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"tms/internal/control"
)

// Swap pauses one process and resumes another in its place, and returns the outcomes of both. The pause persists only
// when the other is resumed: until then the paused process undoes it when the connection ends.
func Swap(ctx context.Context, outPID, inPID int, pause control.SteerRequest, keep Keep, wait time.Duration) []Outcome {
	leaving, coming := Alone(outPID), Alone(inPID)
	leaving.Keep = keep
	defer leaving.Close()
	defer coming.Close()
	leaving.request = pause
	out, in := leaving.Members[0], coming.Members[0]
	failed := func(outError, inError error) []Outcome {
		return []Outcome{Ended(out.Outcome, outError), Ended(in.Outcome, inError)}
	}

	// Connect to both before either changes.
	if leaving.Connect(ctx) != nil {
		return failed(out.err, blamedOn(out.err, "left as it was: %d cannot be paused", outPID))
	}
	if coming.Connect(ctx) != nil {
		return failed(blamedOn(in.err, "left as it was: %d cannot be resumed", inPID), in.err)
	}

	// Pause the one; the end of the connection undoes a pause that has failed. If it can, the other comes at the same time.
	came, err := false, error(nil)
	if leave := in.inPlaceOf(out, pause); leave != nil {
		came, err = leaving.atOnce(ctx, in, leave)
	} else {
		err = leaving.take(ctx, control.Pause)
	}
	if err != nil {
		return failed(out.err, blamedOn(out.err, "left as it was: the pause of %d has failed", outPID))
	}

	// Resume the other in its place, or undo the pause.
	resumed := Ended(in.Outcome, nil)
	if !came {
		before := in.Outcome // what only waits for other processes has taken its own memory
		resumed = in.swapIn(ctx, control.SteerRequest{Op: control.Resume, Tag: pause.Tag}, wait)
		resumed.Bytes, resumed.Imported = resumed.Bytes+before.Bytes, resumed.Imported+before.Imported
	}
	if !resumed.OK {
		return []Outcome{leaving.swapBack(resumed), resumed}
	}
	_ = leaving.persist()
	return []Outcome{Ended(out.Outcome, out.err), resumed}
}

// swapIn resumes the process. What has begun is not interrupted, so that its outcome is known.
func (m *Member) swapIn(ctx context.Context, request control.SteerRequest, wait time.Duration) (o Outcome) {
	request.Wait = cmp.Or(wait.Seconds(), m.state.ResumeWait)
	if m.state.Stats.Everything {
		o = Resume{Request: request, carried: true}.Do(ctx, m.PID)
	} else {
		err := m.resumeLocked(ctx, context.WithoutCancel(ctx), m.Conn, request, m.state)
		o = Ended(m.Outcome, err)
	}
	if ctx.Err() != nil && !o.OK {
		return Ended(o, errors.New("interrupted: it was not resumed"))
	}
	return o
}

// swapBack resumes the process that was paused for another, which could not be resumed.
func (g *Group) swapBack(other Outcome) Outcome {
	m := g.Members[0]
	g.undoLocked(context.Background(), func(_ *Member, reply control.Reply, err error) error {
		return Failure(reply, err)
	})
	if m.err != nil {
		return Ended(m.Outcome, fmt.Errorf("still paused, because it cannot be resumed (%w); it tries again by itself",
			m.err))
	}
	o := m.Outcome
	o.Error, o.Code, o.Unreachable = fmt.Sprintf("resumed again: %d could not be", other.PID), other.Code,
		other.Unreachable
	state, err := m.Status(context.Background(), AnswerTime)
	if err == nil && state.Paused() > m.state.Paused() {
		o.Error = fmt.Sprintf("still paused, because another client keeps it so: %d could not be resumed", other.PID)
	}
	return o
}

// blamedOn returns an error that says what the other process's failure means for this one, and wraps it unprinted.
func blamedOn(err error, format string, other int) error {
	return fmt.Errorf(format+"%.0w", other, err)
}
