package group

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
)

// Ranks that stop just anywhere may have launched different collectives, and then their devices never become idle. So
// they are first aligned, at a consistent cut. All ranks stop before their next collective and report how many they
// have begun of each sequence. The highest count becomes the target of all, and a rank that is behind runs on up to it.
// If a rank waits at one sequence on its way to the target of another, the first target grows by one, for all. Targets
// only grow, and no further than the program's own order makes them, so this ends when all ranks have begun the same.
// (The collective clock of MANA, "Enabling Practical Transparent Checkpointing for MPI: A Topological Sort Approach",
// 2024.)

const (
	alignSlice = 10 * time.Millisecond // how long to wait for a rank that has neither arrived nor is held back
	alignPause = time.Millisecond      // between two questions, if nothing has changed
	// How long no rank makes progress before waiting ranks may go on by one: others may wait for them outside NCCL.
	// Each later time is twice as long, for slow ranks, up to lastStall.
	firstStall = 50 * time.Millisecond
	lastStall  = 400 * time.Millisecond
)

// alignment is one attempt to align the ranks of a job, each of which has its last answer.
type alignment struct {
	*Group
	targets map[string]uint64
	failed  error
}

// align makes all ranks begin the same collectives, and wait before the next ones. all is false, and all ranks go on,
// if they have no collectives in common, could not align in time, or cannot be seen. sure says that there are no other
// collectives, in graphs. Errors: client.ErrUnreachable, wrapped.
func (g *Group) align(ctx context.Context, until time.Time) (all, sure bool, err error) {
	a := &alignment{Group: g}
	defer func() {
		if errors.Is(a.failed, client.ErrUnreachable) {
			err = a.failed
		} else if !all {
			_ = g.each(func(m *Member) error {
				_, err := m.ask(ctx, control.SteerRequest{Op: control.Undo}, 0)
				return err
			})
		}
	}()
	if !a.ask(ctx, 0) {
		return false, false, nil
	}
	stall, moved, before := firstStall, time.Now(), uint64(0)
	for time.Now().Before(until) && ctx.Err() == nil {
		now := a.begun()
		raise := now == before && time.Since(moved) > stall
		if raise {
			stall = min(2*stall, lastStall)
		}
		if raise || now != before {
			moved, before = time.Now(), now
		}
		targets := a.next(raise)
		if len(targets) == 0 {
			return false, false, nil
		}
		same := maps.Equal(targets, a.targets)
		if same && a.reached() {
			return true, a.settle(ctx, until), nil
		}
		if a.targets = targets; same {
			time.Sleep(alignPause)
		}
		if !a.ask(ctx, alignSlice) {
			return false, false, nil
		}
	}
	return false, false, nil
}

// ask sends the targets to all ranks, and waits for their answers.
func (a *alignment) ask(ctx context.Context, within time.Duration) bool {
	request := control.SteerRequest{Op: control.Align, Targets: a.targets, Wait: within.Seconds(), Lease: a.lease()}
	if len(control.Line(request)) > control.MaxLine {
		return false
	}
	a.failed = a.each(func(m *Member) error {
		reply, err := m.ask(ctx, request, within)
		m.alignment = reply.Alignment
		return err
	})
	return a.failed == nil
}

// next returns what all ranks are to begin. raise: ranks that have reached their targets get the next operation that
// they want. A communicator with ranks elsewhere has no target.
func (a *alignment) next(raise bool) map[string]uint64 {
	here, ranks, next := map[string]int{}, map[string]int{}, map[string]uint64{}
	for _, m := range a.Members {
		for _, s := range m.alignment.Sequences {
			here[s.Name] += s.Here
			ranks[s.Name] = s.Ranks
		}
	}
	for _, m := range a.Members {
		for _, s := range m.alignment.Sequences {
			communicator, _, _ := strings.Cut(s.Name, ":")
			if here[communicator] == ranks[communicator] {
				next[s.Name] = max(next[s.Name], s.Begun, a.targets[s.Name])
			}
		}
	}
	for _, m := range a.Members {
		for _, s := range m.alignment.Sequences {
			target, is := next[s.Name]
			if is && s.Wanted && target == a.targets[s.Name] && a.targets != nil && (raise || !m.alignment.Reached) {
				next[s.Name]++
			}
		}
	}
	return next
}

func (a *alignment) begun() (sum uint64) {
	for _, m := range a.Members {
		for _, s := range m.alignment.Sequences {
			sum += s.Begun
		}
	}
	return sum
}

func (a *alignment) reached() bool {
	return !slices.ContainsFunc(a.Members, func(m *Member) bool { return !m.alignment.Reached })
}

// settle waits, where there are collectives in graphs, until all ranks are held back before other collectives that they
// have in common. Then they have launched the same graphs, too. It reports whether that happened soon enough.
func (a *alignment) settle(ctx context.Context, until time.Time) bool {
	if soon := time.Now().Add(firstTry); soon.Before(until) {
		until = soon
	}
	for {
		captured, waiting := false, 0
		for _, m := range a.Members {
			captured = captured || m.alignment.Captured
			if slices.ContainsFunc(m.alignment.Sequences, func(s control.Sequence) bool { return s.Wanted }) {
				waiting++
			}
		}
		if !captured || waiting == len(a.Members) {
			return true
		}
		if time.Now().After(until) || !a.ask(ctx, 0) {
			return false
		}
		time.Sleep(alignPause)
	}
}
