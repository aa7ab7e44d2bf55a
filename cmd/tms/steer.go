package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/vmm/stats"
)

// steering are the flags that pause and resume share.
type steering struct {
	all    bool
	job    string // the processes of one launch
	asJSON bool
	dryRun bool
	keep   group.Keep
	report bool // for libtms.so, of one process: "CODE BYTES", and the error on the next line
	tag    string
}

func (s *steering) add(command *cobra.Command) {
	flags := command.Flags()
	addJob(command, &s.job)
	flags.BoolVar(&s.report, "report", false, "")
	_ = flags.MarkHidden("report")
	s.addTag(command)
	s.addOutput(command)
	s.addProcesses(command)
}

// addProcesses makes the command take processes, by number, by --all, or by --job where it has that.
func (s *steering) addProcesses(command *cobra.Command) {
	command.Flags().BoolVar(&s.all, "all", false, "all processes of this user that listen")
	command.ValidArgsFunction = completeProcesses
	command.Args = func(command *cobra.Command, arguments []string) error {
		if err := notEmpty(command, "job", "all"); err != nil {
			return err
		}
		given := slices.Clone(arguments)
		if s.all {
			given = append([]string{"--all"}, given...)
		}
		if s.job != "" {
			given = append([]string{"--job " + s.job}, given...)
		}
		instead := "--all"
		if command.Flags().Lookup("job") != nil {
			instead = "--all or --job"
		}
		switch {
		case len(given) == 0:
			return fmt.Errorf("name the processes by number, or give %s (tms ps lists them)", instead)
		case len(given) > max(1, len(arguments)):
			return fmt.Errorf("%s and %s are both given: name the processes by number, or by %s", given[0], given[1],
				instead)
		}
		_, err := processes(arguments)
		return err
	}
}

func (s *steering) addTag(command *cobra.Command) {
	command.Flags().StringVar(&s.tag, "tag", "", "only this `TAG` (default: all pausable memory)")
	completesBy(command, "tag", completeTags)
	command.PreRunE = func(command *cobra.Command, _ []string) error { return notEmpty(command, "tag", "all") }
}

func (s *steering) addOutput(command *cobra.Command) {
	command.Flags().BoolVar(&s.asJSON, "json", false, "print one JSON array")
	command.Flags().BoolVar(&s.dryRun, "dry-run", false, "only say what would happen, and whether it fits")
}

// notEmpty refuses an empty name, because without the flag the command would mean something else.
func notEmpty(command *cobra.Command, flag, instead string) error {
	if given := command.Flags().Lookup(flag); given != nil && given.Changed && given.Value.String() == "" {
		return fmt.Errorf("the %s is empty: leave --%[1]s out for %s", flag, instead)
	}
	return nil
}

func addJob(command *cobra.Command, job *string) {
	command.Flags().StringVar(job, "job", "", "the processes of one `LAUNCH` (see tms ps --json)")
	completesBy(command, "job", completeJobs)
}

func addTimeout(command *cobra.Command, timeout *duration, force *bool) {
	addTime(command, timeout, "timeout", control.DefaultTimeout*time.Second, "`TIME` to wait for GPU work to end")
	command.Flags().BoolVar(force, "force", false, "pause though its threads cannot be stopped")
}

func addWait(command *cobra.Command, wait *duration) {
	addTime(command, wait, "wait", 0, "`TIME` to keep trying while memory is short")
}

// processes returns the processes of these numbers, each once.
func processes(arguments []string) (found []int, err error) {
	for _, argument := range arguments {
		pid, err := strconv.Atoi(argument)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("%q is no process: give the number that tms ps shows", argument)
		}
		found = append(found, pid)
	}
	return fleet.Distinct(found), nil
}

func (s *steering) request(op string) control.SteerRequest {
	request := control.SteerRequest{Op: op}
	if tag := s.tag; tag != "" {
		if !utf8.ValidString(tag) {
			tag = stats.TagText(tag)
		}
		request.Tag = &tag
	}
	return request
}

// chosen returns the processes that the command is for.
func (s *steering) chosen(command *cobra.Command, arguments []string) ([]int, error) {
	pids, err := processes(arguments)
	if s.all {
		pids, err = client.List()
	}
	if s.job != "" {
		if pids, err = group.OfJob(s.job); err != nil {
			return nil, err
		}
	}
	if err == nil && len(pids) == 0 {
		fmt.Fprintf(command.ErrOrStderr(), "tms: no process of %s listens; see tms ps\n", cmp.Or(ofWhom(s.job), "this user"))
	}
	return pids, err
}

// run asks these processes at once, and reports each when it is done. verb describes a process in progress.
func (s *steering) run(command *cobra.Command, verb string, pids []int, ask func(context.Context, int) group.Outcome,
	say func(group.Outcome) string) error {
	ctx, _ := interruptible()
	outcomes := make([]group.Outcome, len(pids))
	going := s.progress(command.ErrOrStderr(), verb, pids...)
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			o := ask(ctx, pid)
			outcomes[i] = o
			going.done(pid, func() {
				if s.report {
					fmt.Fprintf(command.OutOrStdout(), "%d %d\n%s", o.Code, o.Bytes, o.Error)
				} else {
					s.tell(command, o, say)
				}
			})
		})
	}
	all.Wait()
	going.end()
	return s.conclude(command, outcomes, outcomes)
}

// pause pauses these processes, each for itself or the whole job.
func (s *steering) pause(command *cobra.Command, pids []int, request control.SteerRequest, to string) error {
	say := func(o group.Outcome) string { return sayPaused(o, to) }
	switch {
	case s.keep.For > 0 && s.job != "":
		say = sayLentUntil
	case s.keep.For > 0:
		say = sayLent
	}
	s.keep.Own = s.report // the program has asked for it
	if s.job == "" {
		return s.run(command, "pausing", pids, func(ctx context.Context, pid int) group.Outcome {
			one := group.Alone(pid)
			one.Keep = s.keep
			return one.Outcomes(one.Pause(ctx, request, to))[0]
		}, say)
	}
	ctx, _ := interruptible()
	job := group.Together(pids...)
	job.Keep = s.keep
	going := s.progress(command.ErrOrStderr(), "pausing", pids...)
	err := job.Pause(ctx, request, to)
	going.end()
	outcomes := job.Outcomes(err)
	for _, o := range outcomes {
		s.tell(command, o, say)
	}
	if !s.asJSON && err == nil && len(pids) > 0 {
		fmt.Fprintf(command.OutOrStdout(), "all %d processes stood between the same collectives at try %d\n", len(pids),
			job.Tries)
		if s.keep.For > 0 {
			fmt.Fprintln(command.OutOrStdout(), sayJobLent(s.job, outcomes[0]))
		}
	}
	return s.conclude(command, outcomes, outcomes)
}

// tell says the result for a process, or with JSON only a failure.
func (s *steering) tell(command *cobra.Command, o group.Outcome, say func(group.Outcome) string) {
	if complain(command, o); o.OK && !s.asJSON {
		fmt.Fprintf(command.OutOrStdout(), "%d: %s\n", o.PID, say(o))
	}
}

// complain says why a command has failed with a process, if it has.
func complain(command *cobra.Command, o group.Outcome) {
	if !o.OK {
		fmt.Fprintf(command.ErrOrStderr(), "tms: %d: %s\n", o.PID, o.Error)
	}
}

// conclude writes the results if they are wanted as JSON, and returns the error with which the command ends. It does
// not return the error of the write, because output remembers that.
func (s *steering) conclude(command *cobra.Command, results any, outcomes []group.Outcome) error {
	if s.asJSON {
		_ = writeJSON(command.OutOrStdout(), results)
	}
	return verdict(outcomes)
}

// verdict returns the error with which a command ends, or nil.
func verdict(outcomes []group.Outcome) error {
	return map[group.Result]error{group.SomeUnreachable: errNoProcess, group.SomeFailed: errNo,
		group.SomeLost: errLost}[group.Summary(outcomes)]
}

func writeJSON(to io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		_, err = to.Write(append(readable.JSON(text), '\n'))
	}
	return err
}

func pauseCommand() *cobra.Command {
	var s steering
	var timeout duration
	var force, everything, discard bool
	var to string
	command := &cobra.Command{
		Use:   "pause PID...",
		Short: "Return the GPU memory of running processes to the device",
		Long: `Returns the pausable GPU memory of processes to the device; addresses in it stay
valid. A program started by tms run waits at its next CUDA call until the
resume. Any other takes --force, and must not use the GPU while it is paused.`,
		Example: `  tms pause 12345
  tms pause --all --tag weights
  tms pause --job 127.0.0.1:29500
  tms pause 12345 --everything --to disk`,
		RunE: func(command *cobra.Command, arguments []string) error {
			switch {
			case strings.HasPrefix(to, control.ToDisk+":"):
				return fmt.Errorf("--to %s: each program has its own folder, by TMS_DISK_BACKUP_DIR or "+
					"tms.set_disk_backup_dir: give --to disk", to)
			case command.Flags().Changed("to") && to != control.ToDisk && to != control.ToHost:
				return fmt.Errorf("--to %s: give disk or host", to)
			case discard && to != "":
				return errors.New("--discard leaves nothing to move: leave --to out")
			case everything && s.tag != "":
				return errors.New("--everything pauses a whole process: leave --tag out")
			case s.dryRun && (everything || to != "" || discard):
				return errors.New("--dry-run foretells a plain pause alone: leave --everything, --to and --discard out")
			case s.job != "" && to != "":
				return errors.New("--job cannot move contents: leave --to out, then pause the processes by number " +
					"with --to")
			}
			pids, err := s.chosen(command, arguments)
			if err != nil {
				return err
			}
			if s.dryRun {
				return s.plan(command, s.planning(force), control.Pause, pids)
			}
			request := s.request(control.Pause)
			request.Timeout, request.Force, request.Everything = new(timeout.Seconds()), force, everything
			if request.Discard = discard; to == control.ToDisk {
				request.To = to
			}
			return s.pause(command, pids, request, to)
		},
	}
	s.add(command)
	addTimeout(command, &timeout, &force)
	command.Flags().BoolVar(&everything, "everything", false, "also have the driver take the rest of the process")
	command.Flags().BoolVar(&discard, "discard", false, "give contents up, whatever their backup")
	command.Flags().StringVar(&to, "to", "", "`WHERE` contents are to wait: disk or host (memory)")
	completes(command, "to", "disk", "host")
	return command
}

func sayPaused(o group.Outcome, to string) string {
	text := nothing(o, "pause")
	if o.Changed() {
		text = fmt.Sprintf("paused, %s in %.2f s", amounts(o, "freed", "unmapped"), o.Seconds) +
			without(", ", o.WithoutContents)
	}
	if o.MovedBytes > 0 {
		text += fmt.Sprintf("; %s moved to %s", readable.Bytes(o.MovedBytes), to)
	}
	if o.NCCL != "" {
		text += "; " + o.NCCL
	}
	if o.Stays != "" {
		text += "; the rest stays: " + o.Stays
	}
	if o.DriverSeconds > 0 {
		text += fmt.Sprintf("; the rest by the driver in %.2f s", o.DriverSeconds)
	}
	return text
}

// without returns the text before and words for bytes without a backup, or "" for no bytes.
func without(before string, bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return before + readable.Bytes(bytes) + " without contents"
}

// nothing says that there was nothing to do, and why if that is known.
func nothing(o group.Outcome, to string) string {
	if o.Note == "" {
		return "nothing to " + to
	}
	return "nothing to " + to + ": " + o.Note
}

// amounts says how much a pause or resume has changed, and what became of the process's own memory and of others'.
func amounts(o group.Outcome, own, others string) string {
	var words []string
	if o.Bytes > 0 {
		words = append(words, strings.TrimSpace(readable.Bytes(o.Bytes)+" "+own))
	}
	if o.Imported > 0 {
		words = append(words, fmt.Sprintf(ofOthers+" %s", readable.Bytes(o.Imported), others))
	}
	return strings.Join(words, " and ")
}

// ofOthers describes memory that the process did not allocate.
const ofOthers = "%s of sets and other processes"

func sayResumed(o group.Outcome) string {
	text := nothing(o, "resume")
	if o.Changed() {
		text = fmt.Sprintf("resumed, %s in %.2f s", amounts(o, "", "mapped"), o.Seconds)
	}
	if o.DriverSeconds > 0 {
		text += fmt.Sprintf("; the driver's part in %.2f s", o.DriverSeconds)
	}
	if o.NCCL != "" {
		text += "; " + o.NCCL
	}
	return text
}

func resumeCommand() *cobra.Command {
	var s steering
	var wait duration
	var driverOnly bool
	command := &cobra.Command{
		Use:   "resume PID...",
		Short: "Restore the GPU memory of paused processes",
		Long: `Gives paused processes their GPU memory again, at the same addresses and with
the contents that were kept. It resumes what the program itself has paused, too.`,
		Example: `  tms resume 12345
  tms resume 12345 --wait 60`,
		RunE: func(command *cobra.Command, arguments []string) error {
			pids, err := s.chosen(command, arguments)
			if err != nil {
				return err
			}
			if s.dryRun {
				return s.plan(command, s.planning(false), control.Resume, pids)
			}
			r := group.Resume{Request: s.request(control.Resume), DriverOnly: driverOnly}
			r.Request.Wait = wait.Seconds()
			return s.run(command, "resuming", pids, r.Do, sayResumed)
		},
	}
	s.add(command)
	addWait(command, &wait)
	command.Flags().BoolVar(&driverOnly, "driver", false, "") // for libtms.so, which does the rest itself
	_ = command.Flags().MarkHidden("driver")
	return command
}
