package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/turns"
	"tms/vmm/cuda"
)

func shareCommand() *cobra.Command {
	var explain, report bool
	var mayTake []string
	command := &cobra.Command{
		Use:   "share PID",
		Short: "Make room for a process that waits for memory",
		Long: `Pauses others of tms run --share until there is room for what a process waits
for, and resumes what they had paused of it. Such a process runs this itself.`,
		Example:           `  tms share 12345 --explain`,
		ValidArgsFunction: completeProcesses,
		RunE: func(command *cobra.Command, arguments []string) error {
			pids, err := processes(arguments)
			if err != nil || len(pids) != 1 {
				return cmp.Or(err, errors.New("name one process by its number (tms ps lists them)"))
			}
			if explain {
				return explained(command, pids[0])
			}
			if mayTake != nil {
				return mayTakeTo(command.OutOrStdout(), pids[0], mayTake)
			}
			signal.Ignore(unix.SIGTSTP) // which a terminal sends with the process: it may have locked a device
			reserve, err := turns.MakeRoom(pids[0])
			o := group.Ended(group.Outcome{PID: pids[0]}, err)
			if report {
				fmt.Fprintf(command.OutOrStdout(), "%d %d\n%s", cuda.Code(err), reserve, o.Error)
				return nil
			}
			complain(command, o)
			return verdict([]group.Outcome{o})
		},
	}
	command.Flags().BoolVar(&explain, "explain", false, "only say what would be paused for it")
	command.Flags().BoolVar(&report, "report", false, "") // for libtms.so: "CODE RESERVE", and the error on the next line
	_ = command.Flags().MarkHidden("report")
	command.Flags().StringSliceVar(&mayTake, "may-take", nil, "") // for libtms.so: UUID,FREE,TOTAL, and answers "0 BYTES"
	_ = command.Flags().MarkHidden("may-take")
	return command
}

// mayTakeTo says how much a process may take of a device.
func mayTakeTo(to io.Writer, pid int, figures []string) error {
	if len(figures) != 3 {
		return fmt.Errorf("--may-take %s: give UUID,FREE,TOTAL", strings.Join(figures, ","))
	}
	free, err := strconv.ParseUint(figures[1], 10, 64)
	total, failed := strconv.ParseUint(figures[2], 10, 64)
	if err := cmp.Or(err, failed); err != nil {
		return err
	}
	_, err = fmt.Fprintf(to, "0 %d\n", turns.MayTake(pid, figures[0], free, total))
	return err
}

// explained says what comes next for a process, and does nothing.
func explained(command *cobra.Command, pid int) error {
	p := fleet.Ask(group.AnswerTime, pid)[0]
	switch {
	case p.Error != "":
		o := group.Ended(group.Outcome{PID: pid}, client.Unreachable("%s", p.Error))
		complain(command, o)
		return verdict([]group.Outcome{o})
	case p.Share == nil:
		return fmt.Errorf("%d does not share its devices: start it with tms run --share", pid)
	}
	words := cmp.Or(strings.Join(turns.NewExplanation(fleet.Ask(group.AnswerTime)).Waits(p), "; "), "waits for no memory")
	_, err := fmt.Fprintf(command.OutOrStdout(), "%d: %s\n", pid, words)
	return err
}
