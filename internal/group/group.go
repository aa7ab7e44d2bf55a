// Package group has several processes do one thing as one: all of them are paused, checkpointed or moved, or each stays
// as it was. One process is a group of one.
//
// A Group has a Member for each process, and each Member has an Outcome. The steps of a pause are in pause.go: the
// group connects to its members, stops them at one cut (stop.go, align.go), pauses them, has the driver take the rest
// (driver.go), and persists the pause. If a step fails, undo.go takes back what the earlier steps have done. A Resume
// goes the other way (resume.go), and a restore by the driver looks for room just before (restore.go). A Move is a
// pause of everything whose restore follows a route to other GPUs (move.go, route.go), and a Swap is a pause that
// persists once another process has resumed (swap.go), part by part where it can (atonce.go). A Plan says what these would do (plan.go).
//
// Whatever takes memory of a device does so under the locks of these devices, in turn (lock.go).
//
// A command keeps no record: the driver knows its part of a process and the process its own, so a resume goes on from
// wherever a pause has ended. If the command ends before a pause persists, each process undoes its part as soon as the
// driver lets it.
package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/machine/checkpoint"
)

// Group is processes that do something together.
type Group struct {
	Members []*Member
	Keep    Keep // how a pause outlasts the command
	Tries   int  // of a job's pause: until all stood between the same collectives
	request control.SteerRequest
	moves   bool
	alone   bool   // one process, which need not be stopped together with others
	parks   bool   // for a snapshot: a process without CUDA takes part
	unlock  func() // ends the locks of the devices, or nil: the group has none
}

// Keep says how a pause outlasts the command.
type Keep struct {
	Own  bool          // the process has asked for the pause itself
	User string        // who has asked for it, or "" for this command's user
	For  time.Duration // until the process resumes by itself, or 0 for no end
	To   string        // who uses the memory, or ""
}

// Member is one process of a group.
type Member struct {
	*client.Conn
	Outcome
	state         control.ProcessState // before the pause
	alignment     *control.Alignment
	communicators []control.Communicator // with ranks in other processes
	driver        *checkpoint.Driver     // nil if it cannot take the process
	at            checkpoint.State       // before a move
	way           route                  // of a move
	moved         bool                   // the driver has restored it where that leads
	err           error
	Contents      []Contents // of a park
	// Kept has the sets that a parked process has open, and Parts copies of what it holds of them, by their numbers.
	Kept  []control.KeptSet
	Parts map[uint64]*os.File
}

// Alone returns the group of one process.
func Alone(pid int) *Group {
	g := Together(pid)
	g.alone = true
	return g
}

// Together returns the group of processes that must stop at the same moment, such as the members of a job.
func Together(pids ...int) *Group {
	g := &Group{}
	for _, pid := range pids {
		g.Members = append(g.Members, &Member{Outcome: Outcome{PID: pid}})
	}
	return g
}

// OfJob lists the processes of a job that listen.
func OfJob(job string) (pids []int, err error) {
	all, err := client.List()
	var others []string
	for _, pid := range all {
		connection, err := client.Dial(pid)
		if err != nil {
			continue
		}
		connection.Close()
		jobs := fleet.JobsOf(pid)
		if slices.Contains(jobs, job) {
			pids = append(pids, pid)
		}
		others = append(others, jobs...)
	}
	if len(pids) == 0 && len(others) > 0 {
		return nil, fmt.Errorf("no process of job %s listens; those that listen belong to %s", job,
			readable.Printable(strings.Join(fleet.Distinct(others), ", ")))
	}
	return pids, err
}

// Reach connects to a process, and asks its state.
func Reach(ctx context.Context, pid int) (*client.Conn, control.ProcessState, error) {
	connection, err := client.Dial(pid)
	if err != nil {
		return nil, control.ProcessState{}, err
	}
	state, err := connection.Status(ctx, AnswerTime)
	if err != nil {
		connection.Close()
	}
	return connection, state, err
}

// UUIDs lists the devices on which the members have had contexts, as they said when the group connected.
func (g *Group) UUIDs() (uuids []string) {
	for _, m := range g.Members {
		for _, device := range m.state.Devices {
			uuids = append(uuids, device.UUID)
		}
	}
	return uuids
}

// Connect connects to all members, and asks their states.
func (g *Group) Connect(ctx context.Context) error {
	return g.each(func(m *Member) (err error) {
		m.Conn, m.state, err = Reach(ctx, m.PID)
		return err
	})
}

// each does something with all members at once. Errors: that of the first member that has one, with its number.
func (g *Group) each(do func(*Member) error) error {
	var all sync.WaitGroup
	for _, m := range g.Members {
		all.Go(func() { m.err = do(m) })
	}
	all.Wait()
	return g.failed()
}

// those lists some of the members.
func (g *Group) those(which func(*Member) bool) []*Member {
	return slices.DeleteFunc(slices.Clone(g.Members), func(m *Member) bool { return !which(m) })
}

func (g *Group) failed() error {
	for _, m := range g.Members {
		if m.err != nil {
			return fmt.Errorf("process %d: %w", m.PID, m.err)
		}
	}
	return nil
}

// ask sends a request that takes no longer than within. A process that is stopped never answers; one that is only late,
// on a busy machine, has until the lease of the members ends. Errors: those of Do; the reply's.
func (m *Member) ask(ctx context.Context, request control.SteerRequest, within time.Duration) (control.Reply, error) {
	within += AnswerTime
	most := max(within, control.Seconds(cmp.Or(request.Lease, leastLease)))
	limited, stop := context.WithTimeout(ctx, most)
	defer stop()
	reply, err := WhileRunning(limited, m.Conn, request, within, AnswerTime)
	if err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrUnreachable) {
		err = client.Unreachable("it does not answer (stopped?)")
	}
	return reply, Failure(reply, err)
}

// Close ends the connections. A process resumes what has been paused over its connection and not persisted.
func (g *Group) Close() {
	for _, m := range g.Members {
		if m.Conn != nil {
			m.Close()
		}
		for _, c := range m.Contents {
			_ = c.File.Close()
		}
		for _, file := range m.Parts {
			_ = file.Close()
		}
	}
}

// Outcomes returns what the group has achieved with each member; err is the error with which it ended, or nil. A member
// without an error of its own was then left as it was.
func (g *Group) Outcomes(err error) []Outcome {
	outcomes := []Outcome{}
	for _, m := range g.Members {
		why := m.err
		switch {
		case why != nil || err == nil:
		case g.alone:
			why = err
		default:
			why = fmt.Errorf("left as it was: %w", err)
		}
		o := Ended(m.Outcome, why)
		o.Tries = g.Tries
		outcomes = append(outcomes, o)
	}
	return outcomes
}
