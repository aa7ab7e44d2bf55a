package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/group"
)

// lending is for how long a process is paused, and for whom.
type lending struct {
	steering
	long duration
	to   string
}

func lendCommand() *cobra.Command {
	l := lending{long: duration{least: time.Second}}
	var timeout duration
	var force, everything bool
	command := &cobra.Command{
		Use:   "lend PID... --for TIME",
		Short: "Pause processes for a while, and lend their memory to others",
		Long: `Pauses processes as tms pause does. When the time is over, each resumes by
itself, as soon as there is room: it ends no other program for that. A tms
resume ends the lend earlier, another tms lend changes its end.`,
		Example: `  tms lend 12345 --for 1h --to bert
  tms lend 12345 --for 30m --tag weights
  tms lend --job 127.0.0.1:29500 --for 1h`,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := l.check(command); err != nil {
				return err
			}
			if everything {
				return errors.New("tms lend leaves the driver's part to the process: the driver loses a process that it " +
					"gives back into too little memory, and at the end of a lend no command looks for that room; leave " +
					"--everything out, or pause with tms pause --everything and end the pause with tms resume")
			}
			pids, err := l.chosen(command, arguments)
			if err != nil {
				return err
			}
			request := l.request(control.Pause)
			request.Timeout, request.Force = new(timeout.Seconds()), force
			l.keep = group.Keep{For: l.long.Duration, To: l.to}
			return l.pause(command, pids, request, "")
		},
	}
	addTime(command, &l.long, "for", 0, "`TIME` until the processes resume by themselves")
	command.Flags().StringVar(&l.to, "to", "", "`USER` that gets the memory; tms ps shows the name")
	completes(command, "to")
	addJob(command, &l.job)
	l.addTag(command)
	addTimeout(command, &timeout, &force)
	command.Flags().BoolVar(&l.asJSON, "json", false, "print one JSON array")
	command.Flags().BoolVar(&everything, "everything", false, "") // for those who know it from tms pause
	_ = command.Flags().MarkHidden("everything")
	l.addProcesses(command)
	return command
}

// check refuses what would not be a lend.
func (l *lending) check(command *cobra.Command) error {
	switch {
	case l.long.Duration == 0:
		return errors.New("say for how long: --for 1h (tms pause has no end)")
	case command.Flags().Changed("to") && strings.TrimSpace(l.to) == "":
		return errors.New("the user is empty: leave --to out, or name the user that gets the memory")
	case len(l.to) > control.MaxName || strings.ContainsFunc(l.to, unicode.IsControl):
		return fmt.Errorf("--to takes a name of at most %d bytes, without control characters", control.MaxName)
	}
	return nil
}

// sayLent says until when a process is paused, and what happens then.
func sayLent(o group.Outcome) string {
	return fmt.Sprintf("%s. Then it resumes as soon as there is room; tms resume %d takes the memory back earlier",
		sayLentUntil(o), o.PID)
}

// sayLentUntil is sayLent for a member of a job. sayJobLent says the rest, once for the job.
func sayLentUntil(o group.Outcome) string {
	until := fleet.Moment(end(o), time.Now())
	return fmt.Sprintf("%s; lent to %s until %s", sayPaused(o, ""), cmp.Or(o.To, "others"), until)
}

func end(o group.Outcome) time.Time { return time.UnixMicro(int64(o.Until * 1e6)) }

// sayJobLent says what happens to a job at the end of its lend.
func sayJobLent(job string, o group.Outcome) string {
	return fmt.Sprintf("after %s each resumes as soon as there is room; tms resume --job %s takes the memory back earlier",
		fleet.Moment(end(o), time.Now()), readable.Printable(job))
}
