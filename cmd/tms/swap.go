package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"tms/internal/control"
	"tms/internal/group"
)

// swapping are the flags of a swap.
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
		Long: `Pauses the process OUT, and resumes the process IN in its place: at the same
time where possible, else afterwards. If IN cannot be resumed, OUT is resumed
again.`,
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
		f := foretelling{steering: &s.steering, planning: s.planning(s.force)}
		f.foretell(command, control.Pause, outPID)
		f.foretell(command, control.Resume, inPID)
		return f.conclude(command)
	}
	ctx, again := interruptible()
	context.AfterFunc(ctx, again) // a second signal ends the command
	going := s.progress(command.ErrOrStderr(), "swapping", outPID, inPID)
	request := s.request(control.Pause)
	request.Timeout, request.Force = new(s.timeout.Seconds()), s.force
	outcomes := group.Swap(ctx, outPID, inPID, request, group.Keep{}, s.wait.Duration)
	going.end()
	s.tell(command, outcomes[0], func(o group.Outcome) string { return sayPaused(o, "") })
	s.tell(command, outcomes[1], sayResumed)
	return s.conclude(command, outcomes, outcomes)
}
