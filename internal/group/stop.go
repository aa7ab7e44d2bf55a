package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// The times of a try to hold up all ranks at once.
const (
	firstTry = 50 * time.Millisecond // for the devices to become idle; doubled as long as none does
	lastTry  = 5 * time.Second
	runOn    = 50 * time.Millisecond // the longest that ranks go on before the next try
	leastTry = time.Second           // for what must no longer fail for lack of time
	// How many times as long for aligned ranks, which wait only for their own devices.
	alignedTries = 8
	leastLease   = 60.0 // seconds, for a busy rank's answer to a request without a lease
)

// stop holds up the threads of all ranks, so that no device has work left: all are between the same two collectives. It
// aligns the ranks for that, unless aligning has failed to help twice. As long as one rank has work that another is to
// finish, all go on for a moment, and stop tries again.
func (g *Group) stop(ctx context.Context) error {
	until := time.Now().Add(control.Seconds(g.request.TimeoutSeconds()))
	alignments := 2
	for try := firstTry; ; {
		g.Tries++
		all, sure, most := false, false, try
		if alignments > 0 {
			var err error
			if all, sure, err = g.align(ctx, time.Now().Add(time.Until(until)/2)); err != nil {
				return g.undo(err)
			}
			if all && sure {
				most *= alignedTries
			}
		}
		hold := g.request
		hold.Hold, hold.Timeout = true, new(max(0, min(most, time.Until(until))).Seconds())
		hold.Lease, hold.Everything = g.lease(), false
		if g.request.Everything {
			hold.NCCL = &control.NCCL{}
		}
		err := g.each(func(m *Member) error {
			reply, err := m.ask(ctx, hold, most)
			m.communicators = reply.Communicators
			return err
		})
		if err == nil {
			return nil
		}
		late, held := true, false
		for _, m := range g.Members {
			late = late && (m.err == nil || Code(m.err) == int(cuda.Timeout))
			held = held || m.err == nil
		}
		if !all || sure && held { // if none was idle, all still have work
			alignments--
		}
		if !late || !time.Now().Before(until) {
			for _, m := range g.Members {
				if late && m.err != nil {
					m.err = fmt.Errorf("in %d tries the ranks never stood between the same collectives: %w", g.Tries,
						m.err)
				}
			}
			return g.undo(err)
		}
		if failed := g.goOn(ctx); failed != nil {
			return failed
		}
		if held { // if one had so little to do, the others most likely wait for it
			try += try / 8
		} else {
			try *= 2
		}
		try = min(try, lastTry)
	}
}

// lease returns how many seconds this command may stay silent before the ranks that it holds up go on: the whole time
// of a pause, and of an answer.
func (g *Group) lease() float64 {
	return min(g.request.TimeoutSeconds()+AnswerTime.Seconds(), control.MaxSeconds)
}

// goOn lets stopped ranks run on.
func (g *Group) goOn(ctx context.Context) error {
	undo := control.SteerRequest{Op: control.Undo}
	if err := g.each(func(m *Member) error { return Ask(ctx, m.Conn, undo) }); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(rand.Int64N(int64(runOn)))):
		return nil
	}
}

// together lists the communicators whose ranks are all stopped Here: those can be suspended, each in all processes at
// once. A rank that gets there after half of the timeout finds that the others will not wait for it.
func (g *Group) together(timeout float64) *control.NCCL {
	here, ranks := map[string]int{}, map[string]int{}
	for _, m := range g.Members {
		for _, c := range m.communicators {
			here[c.Name] += c.Here
			ranks[c.Name] = c.Ranks
		}
	}
	until := time.Now().Add(control.Seconds(timeout / 2))
	all := &control.NCCL{Until: float64(until.UnixMicro()) / 1e6}
	for name, count := range here {
		if count == ranks[name] {
			all.Together = append(all.Together, name)
		}
	}
	slices.Sort(all.Together)
	return all
}
