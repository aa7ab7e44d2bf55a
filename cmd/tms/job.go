package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/checkpoint"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/readable"
	"tms/vmm/cuda"
)

// A job is the processes of one launch on this host, known by the variables that their launcher gave them
// (/proc/PID/environ). Either all of them are paused or none.

func addJob(command *cobra.Command, job *string) {
	command.Flags().StringVar(job, "job", "", "the processes of one `LAUNCH` (see tms ps --json)")
	completesBy(command, "job", completeJobs)
}

// ofJob lists the processes of a launch that listen.
func ofJob(job string) (found []int, err error) {
	pids, err := client.List()
	var others []string
	for _, pid := range pids {
		connection, err := client.Dial(pid)
		if err != nil {
			continue
		}
		connection.Close()
		jobs := fleet.JobsOf(pid)
		if slices.Contains(jobs, job) {
			found = append(found, pid)
		}
		others = append(others, jobs...)
	}
	if len(found) == 0 && len(others) > 0 {
		return nil, fmt.Errorf("no process of job %s listens; those that listen belong to %s", job,
			readable.Printable(strings.Join(distinct(others), ", ")))
	}
	return found, err
}

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

// jobRank is one process of a job.
type jobRank struct {
	*client.Conn
	outcome
	state         control.ProcessState // before the pause
	alignment     *control.Alignment
	communicators []control.Communicator // with ranks in other processes
	driver        *checkpoint.Driver     // nil if it cannot take the process
	at            checkpoint.State       // before a move
	way           route                  // of a move
	moved         bool                   // the driver has restored it where that leads
	err           error
}

// ask sends a request that takes no longer than within. A process that is stopped never answers; one that is only late,
// on a busy machine, has until the lease of the ranks ends. Errors: those of Do; the reply's.
func (r *jobRank) ask(ctx context.Context, request control.Request, within time.Duration) (control.Reply, error) {
	within += answerTime
	most := max(within, control.Seconds(cmp.Or(request.Lease, leastLease)))
	limited, stop := context.WithTimeout(ctx, most)
	defer stop()
	reply, err := whileRunning(limited, r.Conn, request, within, answerTime)
	if err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrUnreachable) {
		err = client.Unreachable("it does not answer (stopped?)")
	}
	return reply, failure(reply, err)
}

// job is a job that is being paused, or processes that move together.
type job struct {
	ranks   []*jobRank
	request control.Request
	moves   bool
	alone   bool // one process, which need not be stopped together with others
	tries   int
}

// pauseJob pauses all processes of the job, or none.
func (s *steering) pauseJob(command *cobra.Command, request control.Request) error {
	pids, err := s.named(command, nil)
	if err != nil {
		return err
	}
	ctx, _ := interruptible()
	j := &job{request: request}
	for _, pid := range pids {
		j.ranks = append(j.ranks, &jobRank{outcome: outcome{PID: pid}})
	}
	defer j.close()
	going := s.progress(command.ErrOrStderr(), "pausing", pids...)
	err = j.pause(ctx, s)
	going.end()
	outcomes := []outcome{}
	for _, r := range j.ranks {
		o := ended(r.outcome, r.err)
		if err != nil && r.err == nil {
			o = ended(o, fmt.Errorf("left as it was: %w", err))
		}
		o.Tries = j.tries
		outcomes = append(outcomes, o)
		s.tell(command, o, pausing{}.say)
	}
	if !s.asJSON && err == nil && len(pids) > 0 {
		fmt.Fprintf(command.OutOrStdout(), "all %d processes stood between the same collectives at try %d\n", len(pids),
			j.tries)
	}
	return s.conclude(command, outcomes, outcomes)
}

// each does something with all ranks at once. Errors: that of the first rank that has one, with its number.
func (j *job) each(do func(*jobRank) error) error {
	var all sync.WaitGroup
	for _, r := range j.ranks {
		all.Go(func() { r.err = do(r) })
	}
	all.Wait()
	return j.failed()
}

// those lists some of the ranks.
func (j *job) those(which func(*jobRank) bool) []*jobRank {
	return slices.DeleteFunc(slices.Clone(j.ranks), func(r *jobRank) bool { return !which(r) })
}

func (j *job) failed() error {
	for _, r := range j.ranks {
		if r.err != nil {
			return fmt.Errorf("process %d: %w", r.PID, r.err)
		}
	}
	return nil
}

// pause pauses every rank, or returns an error and leaves every rank as it was. Each rank has its own reason.
func (j *job) pause(ctx context.Context, s *steering) error {
	err := j.each(func(r *jobRank) (err error) {
		r.Conn, r.state, err = reach(ctx, r.PID)
		return err
	})
	if err != nil {
		return err
	}
	err = j.take(ctx, s, control.Pause)
	if err == nil && j.request.Everything {
		err = j.takeRest(ctx)
	}
	if err != nil {
		return err
	}
	return j.keep()
}

// fits refuses a pause whose contents have no room in host memory.
func (j *job) fits(s *steering, op string) error {
	planning := s.planning(true)
	for _, r := range j.ranks {
		made := plan{PID: r.PID, Op: op, Legs: r.way.legs}
		if planning.plan(&made, r.state); made.Error != "" && !j.request.Discard {
			r.err = &refusal{"with those of the job before it, " + made.Error, int(cuda.OperatingSystem),
				made.HostBytes, *made.HostAvailableBytes}
			return r.err
		}
	}
	return nil
}

// take pauses all ranks when all can be stopped at once. After an error all are as before.
func (j *job) take(ctx context.Context, s *steering, op string) error {
	pause := j.request
	if j.alone { // it refuses by itself what does not fit
		pause.Toward = j.ranks[0].way.toward
		return j.each(func(r *jobRank) error { return r.do(ctx, r.Conn, pause) })
	}
	if err := j.fits(s, op); err != nil {
		return err
	}
	if err := j.hold(ctx); err != nil {
		return err
	}
	timeout := max(leastTry.Seconds(), j.request.TimeoutSeconds()) // there is nothing left to wait for
	pause.Timeout, pause.Everything = &timeout, false
	if j.request.Everything {
		pause.NCCL = j.together(timeout)
	}
	// A rank whose NCCL is being suspended waits for the others: until that wait has ended, an interrupt withdraws
	// nothing.
	carried, withdraw := context.WithCancel(context.WithoutCancel(ctx))
	defer withdraw()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(pause.NCCL.Wait(), withdraw) })()
	err := j.each(func(r *jobRank) error {
		request := pause
		request.Toward = r.way.toward
		return r.do(carried, r.Conn, request)
	})
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return j.undo(err)
	}
	return nil
}

// together lists the communicators whose ranks are all stopped Here: those can be suspended, each in all processes at
// once. A rank that gets there after half of the timeout finds that the others will not wait for it.
func (j *job) together(timeout float64) *control.NCCL {
	here, ranks := map[string]int{}, map[string]int{}
	for _, r := range j.ranks {
		for _, c := range r.communicators {
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

// takeRest is checkpoint, if the driver can take each rank; why it cannot is no error.
func (j *job) takeRest(ctx context.Context) error {
	var why string
	for _, r := range j.ranks {
		var err error
		if r.driver, _, err = free(r.PID); err != nil {
			r.Stays = err.Error()
		}
		if why == "" && r.Stays != "" {
			why = fmt.Sprintf("of process %d: %s", r.PID, strings.TrimSuffix(r.Stays, otherwise))
		}
	}
	if why != "" {
		for _, r := range j.ranks {
			r.Stays = cmp.Or(strings.TrimSuffix(r.Stays, otherwise), "the driver takes all ranks or none, and "+why)
		}
		return nil
	}
	return j.checkpoint(ctx)
}

// checkpoint makes the driver take the rest of all ranks, which have paused. Ranks that share memory are locked before
// the first is checkpointed. After an error all are as before, or the ranks say what is not.
func (j *job) checkpoint(ctx context.Context) error {
	timeout := max(leastTry, control.Seconds(j.request.TimeoutSeconds()))
	asked := j.request
	asked.Timeout = new(timeout.Seconds())
	err := j.each(func(r *jobRank) (err error) {
		if !j.alone { // else it was asked for everything at once
			err = ask(ctx, r.Conn, asked)
		}
		if err == nil && j.moves {
			err = j.mayMove(ctx, r)
		}
		return err
	})
	start := time.Now()
	if err == nil {
		err = j.each(func(r *jobRank) error { return r.driver.Lock(r.PID, timeout) })
	}
	if err == nil {
		err = j.each(func(r *jobRank) error { return r.checkpoint(ctx) })
	}
	if err == nil {
		for _, r := range j.ranks {
			r.DriverSeconds = time.Since(start).Seconds()
		}
		return nil
	}
	_ = j.undone(func(r *jobRank) (string, error) {
		r.Bytes, r.Imported, r.NCCL = 0, 0, ""
		return asBefore, cmp.Or(r.err, err)
	})
	return err
}

// hold holds up the threads of all ranks, so that no device has work left: all are between the same two collectives. It
// aligns the ranks for that, unless aligning has failed to help twice. As long as one rank has work that another is to
// finish, all go on for a moment, and hold tries again.
func (j *job) hold(ctx context.Context) error {
	until := time.Now().Add(control.Seconds(j.request.TimeoutSeconds()))
	alignments := 2
	for try := firstTry; ; {
		j.tries++
		all, sure, most := false, false, try
		if alignments > 0 {
			var err error
			if all, sure, err = j.align(ctx, time.Now().Add(time.Until(until)/2)); err != nil {
				return j.undo(err)
			}
			if all && sure {
				most *= alignedTries
			}
		}
		hold := j.request
		hold.Hold, hold.Timeout = true, new(max(0, min(most, time.Until(until))).Seconds())
		hold.Lease, hold.Everything = j.lease(), false
		if j.request.Everything {
			hold.NCCL = &control.NCCL{}
		}
		err := j.each(func(r *jobRank) error {
			reply, err := r.ask(ctx, hold, most)
			r.communicators = reply.Communicators
			return err
		})
		if err == nil {
			return nil
		}
		late, held := true, false
		for _, r := range j.ranks {
			late = late && (r.err == nil || code(r.err) == int(cuda.Timeout))
			held = held || r.err == nil
		}
		if !all || sure && held { // if none was idle, all still have work
			alignments--
		}
		if !late || !time.Now().Before(until) {
			for _, r := range j.ranks {
				if late && r.err != nil {
					r.err = fmt.Errorf("in %d tries the ranks never stood between the same collectives: %w", j.tries,
						r.err)
				}
			}
			return j.undo(err)
		}
		if failed := j.goOn(ctx); failed != nil {
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
func (j *job) lease() float64 {
	return min(j.request.TimeoutSeconds()+answerTime.Seconds(), control.MaxSeconds)
}

// goOn lets stopped ranks run on.
func (j *job) goOn(ctx context.Context) error {
	undo := control.Request{Op: control.Undo}
	if err := j.each(func(r *jobRank) error { return ask(ctx, r.Conn, undo) }); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(rand.Int64N(int64(runOn)))):
		return nil
	}
}

// undo puts every rank back as it was, and returns the cause; a rank that is not says so. It does all ranks at once,
// because NCCL's are resumed together.
func (j *job) undo(cause error) error {
	own, paused := map[*jobRank]error{}, false
	for _, r := range j.ranks {
		own[r], paused = r.err, paused || r.changed()
	}
	did := func(r *jobRank, reply control.Reply, err error) error {
		own := own[r]
		if err = failure(reply, err); err != nil && !errors.Is(err, client.ErrUnreachable) {
			own = fmt.Errorf("it cannot be resumed (%w) and tries again by itself; the other ranks are as before: %w",
				err, cause)
		} else if err == nil && reply.NCCL != "" {
			own = fmt.Errorf("%w; %s", cmp.Or(own, cause), reply.NCCL)
		}
		r.Bytes, r.Imported, r.NCCL, r.Stays = 0, 0, "", ""
		return own
	}
	if paused {
		j.undoInTurn(context.Background(), did)
		return cause
	}
	_ = j.each(func(r *jobRank) error { // it takes no memory, so it waits for no lock
		reply, err := r.Do(context.Background(), control.Request{Op: control.Undo})
		return did(r, reply, err)
	})
	return cause
}

// keep makes the pause outlast this command. If a rank has ended by now, the others are resumed.
func (j *job) keep() error {
	keep := control.Request{Op: control.Keep}
	err := j.each(func(r *jobRank) error { return ask(context.Background(), r.Conn, keep) })
	if err == nil {
		return nil
	}
	_ = j.each(func(r *jobRank) error {
		if r.err != nil {
			return r.err
		}
		resume := control.Request{Op: control.Resume, Tag: j.request.Tag}
		if o := (resuming{request: resume}).resume(context.Background(), r.PID); !o.OK {
			return fmt.Errorf("it is paused, and cannot be resumed (%s): %w", o.Error, err)
		}
		return nil
	})
	return err
}

func (j *job) close() {
	for _, r := range j.ranks {
		if r.Conn != nil {
			r.Close()
		}
	}
}
