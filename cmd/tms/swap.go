package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"tms/internal/control"
	"tms/internal/control/client"
)

// swapping is one swap. OUT's pause is kept only when IN is resumed: until then OUT itself undoes it when the
// connection ends.
type swapping struct {
	steering
	timeout, wait duration
	force         bool
}

func swapCommand() *cobra.Command {
	var s swapping
	command := &cobra.Command{
		Use:   "swap OUT IN",
		Short: "Pause one process and resume another in its place",
		Long: `Pauses the process OUT, then resumes the process IN in its place. If IN cannot
be resumed, OUT is resumed again.`,
		Example: `  tms swap 12345 23456
  tms swap 12345 23456 --tag weights --wait 60`,
		ValidArgsFunction: completeProcesses,
		RunE: func(command *cobra.Command, arguments []string) error {
			pids, err := processes(arguments)
			if err != nil || len(arguments) != 2 || len(pids) != 2 {
				return cmp.Or(err, errors.New("name two different processes by number: the one to pause and the one "+
					"to resume (tms ps lists them)"))
			}
			return s.run(command, pids[0], pids[1])
		},
	}
	s.addTag(command)
	s.addOutput(command)
	addTimeout(command, &s.timeout, &s.force)
	addWait(command, &s.wait)
	return command
}

func (s *swapping) run(command *cobra.Command, outPID, inPID int) error {
	if s.dryRun {
		p := s.planning(s.force)
		p.run(command, control.Pause, outPID)
		p.run(command, control.Resume, inPID)
		return s.conclude(command, p.plans, p.outcomes)
	}
	ctx, again := interruptible()
	context.AfterFunc(ctx, again) // a second signal ends the command
	going := s.progress(command.ErrOrStderr(), "swapping", outPID, inPID)
	outcomes := s.swap(ctx, outPID, inPID)
	going.end()
	for i, say := range []func(outcome) string{pausing{}.say, sayResumed} {
		s.tell(command, outcomes[i], say)
	}
	return s.conclude(command, outcomes, outcomes)
}

// swap returns the outcomes of OUT and IN.
func (s *swapping) swap(ctx context.Context, outPID, inPID int) []outcome {
	out, in := outcome{PID: outPID}, outcome{PID: inPID}
	failed := func(outError, inError error) []outcome {
		return []outcome{ended(out, outError), ended(in, inError)}
	}
	leaving, before, err := reach(ctx, outPID)
	if err != nil {
		return failed(err, because(err, "left as it was: %d cannot be paused", outPID))
	}
	defer leaving.Close()
	coming, state, err := reach(ctx, inPID)
	if err != nil {
		return failed(because(err, "left as it was: %d cannot be resumed", inPID), err)
	}
	defer coming.Close()

	request := s.request(control.Pause)
	request.Timeout, request.Force = new(s.timeout.Seconds()), s.force
	if err = out.do(ctx, leaving, request); err != nil { // the end of the connection resumes what it has paused
		return failed(err, because(err, "left as it was: %d was not paused", outPID))
	}
	if in = s.resume(ctx, coming, in, state); !in.OK {
		back := &jobRank{Conn: leaving, state: before}
		(&job{ranks: []*jobRank{back}}).undoInTurn(context.Background(),
			func(_ *jobRank, reply control.Reply, err error) error { return failure(reply, err) })
		if err = back.err; err != nil {
			out = ended(out, fmt.Errorf("still paused, because it cannot be resumed (%w); it tries again by itself",
				err))
		} else {
			out.Error, out.Code, out.unreachable = fmt.Sprintf("resumed again: %d could not be", inPID), in.Code,
				in.unreachable
			if state, err := leaving.Status(context.Background(), answerTime); err == nil && state.Paused() > before.Paused() {
				out.Error = fmt.Sprintf("still paused, because another client keeps it so: %d could not be resumed",
					inPID)
			}
		}
		return []outcome{out, in}
	}
	return []outcome{ended(out, ask(context.Background(), leaving, control.Request{Op: control.Keep})), in}
}

func pausedOf(state control.ProcessState) (bytes uint64) {
	for _, d := range state.Stats.Devices {
		for _, tag := range d.Tags {
			bytes += tag.AllPaused()
		}
	}
	return bytes
}

func reach(ctx context.Context, pid int) (*client.Conn, control.ProcessState, error) {
	connection, err := client.Dial(pid)
	if err != nil {
		return nil, control.ProcessState{}, err
	}
	state, err := connection.Status(ctx, answerTime)
	if err != nil {
		connection.Close()
	}
	return connection, state, err
}

// resume is not interrupted once it has begun, so that its outcome is known.
func (s *swapping) resume(ctx context.Context, in *client.Conn, o outcome, state control.ProcessState) outcome {
	request := s.request(control.Resume)
	request.Wait = cmp.Or(s.wait.Seconds(), state.ResumeWait)
	if state.Stats.Everything {
		o = resuming{request: request, carried: true}.resume(ctx, o.PID)
	} else {
		err := o.resumeInTurn(ctx, context.WithoutCancel(ctx), in, request, state)
		o = ended(o, err)
	}
	if ctx.Err() != nil && !o.OK {
		return ended(o, errors.New("interrupted: it was not resumed"))
	}
	return o
}

// because returns an error that says what the other process's failure means for this one, and wraps it unprinted.
func because(err error, format string, other int) error {
	return fmt.Errorf(format+"%.0w", other, err)
}
