package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/group"
)

// A move is a pause of everything after which the driver gives the process back on other GPUs. It keeps no record
// either: what is left of a move that was killed is a pause of everything, which the next move or a resume ends.

func moveCommand() *cobra.Command {
	var s steering
	var from, to string
	var pairs []string // OLD=NEW
	var timeout duration
	var force bool
	command := &cobra.Command{
		Use:   "move PID...",
		Short: "Move running processes to other GPUs",
		Long: `Moves running processes to other GPUs of the same model: the driver takes all of
each, and restores it there. GPUs have the numbers that nvidia-smi shows.`,
		Example: `  tms move 12345 --to 1
  tms move 12345 --map 0=2,1=3
  tms move --all --from 0 --to 1`,
		RunE: func(command *cobra.Command, arguments []string) error {
			switch {
			case (to == "") == (len(pairs) == 0):
				return errors.New("give either --to, or --map with the GPUs that change, such as 0=2,1=3")
			case from != "" && to == "":
				return errors.New("--from says what goes to --to: leave it out of a --map")
			case s.all && from == "" && len(pairs) == 0:
				return errors.New("--all takes --from or --map: which GPU is to be emptied?")
			}
			for _, pair := range pairs {
				if old, new, found := strings.Cut(pair, "="); !found || old == "" || new == "" {
					return fmt.Errorf("--map %q: give each GPU and where it goes, such as 0=2,1=3", pair)
				}
			}
			_ = os.Unsetenv("CUDA_VISIBLE_DEVICES") // the driver is given all GPUs
			pids, err := s.chosen(command, arguments)
			if err != nil {
				return err
			}
			m := group.NewMove(timeout.Duration, force)
			m.PIDs, m.Job, m.All, m.From, m.To, m.Pairs = pids, s.job != "", s.all, from, to, pairs
			if s.dryRun {
				planning := s.planning(force)
				planning.Before = m.Begin
				return s.plan(command, planning, control.Pause, pids)
			}
			return s.run(command, "moving", pids, m.Do, func(o group.Outcome) string {
				if o.Move == nil {
					return nothing(o, "move")
				}
				text := fmt.Sprintf("moved %v in %.2f s (pause %.2f, checkpoint %.2f, restore %.2f, resume %.2f)",
					o.Move.Legs, o.Seconds, o.Move.Pause, o.Move.Checkpoint, o.Move.Restore, o.Move.Resume)
				if len(o.Move.With) > 0 {
					text += fmt.Sprintf(", together with %s", numbers(o.Move.With))
				}
				if o.MovedBytes > 0 {
					text += fmt.Sprintf("; %s of contents from GPU to GPU", readable.Bytes(o.MovedBytes))
				}
				if o.NCCL != "" {
					text += "; " + o.NCCL
				}
				return text
			})
		},
	}
	addJob(command, &s.job)
	s.addProcesses(command)
	s.addOutput(command)
	addTimeout(command, &timeout, &force)
	command.Flags().StringVar(&to, "to", "", "`GPU` to move to, by number or UUID")
	command.Flags().StringVar(&from, "from", "", "move only what is on this `GPU`")
	command.Flags().StringSliceVar(&pairs, "map", nil, "`OLD=NEW` for each GPU that changes, with commas between")
	for _, flag := range []string{"to", "from", "map"} {
		completes(command, flag)
	}
	return command
}
